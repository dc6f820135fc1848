// JSON as text. It is laid out token by token and never parsed into numbers and back: 12345678901234567890 stays what it is.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/g;

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** `[{text, kind}]`, where kind is key, string, number, word or plain; null when the text is no JSON. */
export function layOut(text, indent = "  ") {
  if (!isJson(text)) return null;
  const tokens = text.match(TOKEN) ?? [];
  const parts = [];
  const plain = (piece) => {
    const last = parts[parts.length - 1];
    if (last?.kind === "plain") last.text += piece;
    else parts.push({ text: piece, kind: "plain" });
  };
  let depth = 0;
  tokens.forEach((token, i) => {
    const next = tokens[i + 1];
    const line = () => plain(`\n${indent.repeat(depth)}`);
    if (token === "{" || token === "[") {
      plain(token);
      if (next === "}" || next === "]") return;
      depth++;
      line();
    } else if (token === "}" || token === "]") {
      const before = tokens[i - 1];
      if (before !== "{" && before !== "[") {
        depth--;
        line();
      }
      plain(token);
    } else if (token === ",") {
      plain(",");
      line();
    } else if (token === ":") plain(": ");
    else if (token.startsWith('"')) parts.push({ text: token, kind: next === ":" ? "key" : "string" });
    else parts.push({ text: token, kind: /^[tfn]/.test(token) ? "word" : "number" });
  });
  return parts;
}

export const pretty = (text) => layOut(text)?.map((part) => part.text).join("") ?? null;
