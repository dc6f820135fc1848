// JSON as text. It is formatted token by token and never parsed into numbers: 12345678901234567890 keeps its digits.
// One pass without recursion, so that time and result are linear in the text at any nesting depth.

// Indented levels. Deeper ones stay on one line: indenting them would make the text grow quadratically.
const INDENTED_LEVELS = 24;

const SPACE = new Set([0x20, 0x0a, 0x0d, 0x09]);
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0].length ?? 0;
}

/** The end of the string that begins at `at`; the negative position of an error. */
function endOfString(text, at) {
  let i = at + 1;
  while (i < text.length) {
    const code = text.charCodeAt(i);
    if (code === 0x22) return i + 1;
    if (code < 0x20) return -i;
    if (code === 0x5c) {
      const length = matchAt(ESCAPE, text, i);
      if (length === 0) return -i;
      i += length;
    } else i++;
  }
  return -i;
}

/** Calls `each(kind, from, to)` for every token. Returns null, or `{at, wanted}` where the text is invalid. */
function scan(text, each) {
  const isObject = []; // of each level
  let wanted = "a value";
  let at = 0;
  let mayClose = false; // an object or array that was just opened
  for (;;) {
    while (at < text.length && SPACE.has(text.charCodeAt(at))) at++;
    if (at >= text.length) return wanted === "the end" ? null : { at, wanted };
    const from = at;
    const sign = text[at];
    const inObject = isObject[isObject.length - 1];
    if ((sign === "}" || sign === "]") && isObject.length > 0 && (mayClose || wanted === "',' or a closing bracket") && inObject === (sign === "}")) {
      isObject.pop();
      mayClose = false;
      each("close", from, ++at);
      wanted = isObject.length > 0 ? "',' or a closing bracket" : "the end";
    } else if (wanted === "a value") {
      mayClose = false;
      let kind;
      if (sign === "{" || sign === "[") {
        at++;
        isObject.push(sign === "{");
        mayClose = true;
        each("open", from, at);
        wanted = sign === "{" ? "a name in quotes" : "a value";
        continue;
      }
      if (sign === '"') {
        kind = "string";
        at = endOfString(text, from);
        if (at < 0) return { at: -at, wanted: "a closing quote" };
      } else {
        const digits = matchAt(NUMBER, text, from);
        kind = digits > 0 ? "number" : "word";
        at += digits > 0 ? digits : matchAt(WORD, text, from);
        if (at === from) return { at, wanted };
      }
      each(kind, from, at);
      wanted = isObject.length > 0 ? "',' or a closing bracket" : "the end";
    } else if (wanted === "a name in quotes" && sign === '"') {
      mayClose = false;
      at = endOfString(text, from);
      if (at < 0) return { at: -at, wanted: "a closing quote" };
      each("key", from, at);
      wanted = "':'";
    } else if (wanted === "':'" && sign === ":") {
      each("colon", from, ++at);
      wanted = "a value";
    } else if (wanted === "',' or a closing bracket" && sign === ",") {
      each("comma", from, ++at);
      wanted = inObject ? "a name in quotes" : "a value";
    } else return { at, wanted };
  }
}

/** Where a text is invalid JSON: `{line, column, at, wanted}`, with line and column from 1; null if it is valid. */
export function jsonFault(text) {
  const fault = scan(text, () => {});
  if (fault === null) return null;
  const before = text.slice(0, fault.at).split("\n");
  return { ...fault, line: before.length, column: before[before.length - 1].length + 1 };
}

export const isJson = (text) => scan(text, () => {}) === null;

/**
 * The formatted text as `[{text, kind}]`, where kind is key, string, number, word or plain; null if it is invalid. Stops after
 * about `most` characters.
 */
export function layOut(text, { indent = "  ", most = Infinity } = {}) {
  const parts = [];
  let written = 0;
  const put = (piece, kind) => {
    written += piece.length;
    const last = parts[parts.length - 1];
    if (kind === "plain" && last?.kind === "plain") last.text += piece;
    else parts.push({ text: piece, kind });
  };
  let depth = 0;
  let justOpened = false;
  const line = () => put(depth <= INDENTED_LEVELS ? `\n${indent.repeat(depth)}` : "", "plain");
  const fault = scan(text, (kind, from, to) => {
    if (kind === "open") depth++;
    if (kind === "close") depth--;
    if (written >= most) return;
    if (kind === "open") {
      if (justOpened) {
        depth--;
        line();
        depth++;
      }
      put(text[from], "plain");
      justOpened = true;
      return;
    }
    if (kind === "close") {
      if (!justOpened && depth < INDENTED_LEVELS) line();
      put(text[from], "plain");
    } else {
      if (justOpened) line();
      if (kind === "comma") {
        put(",", "plain");
        if (depth <= INDENTED_LEVELS) line();
        else put(" ", "plain");
      } else if (kind === "colon") put(": ", "plain");
      else put(text.slice(from, Math.min(to, from + most)), kind);
    }
    justOpened = false;
  });
  return fault === null ? parts : null;
}

export const pretty = (text, most) => layOut(text, { most })?.map((part) => part.text).join("") ?? null;
