// Bytes as in the API: text if they are UTF-8, else base64.

/** `{text, base64}` of `body`/`body_base64`, `payload`/`payload_base64` or `result`/`result_base64`; null if both are absent. */
export function carried(owner, name) {
  const text = owner[name];
  const base64 = owner[`${name}_base64`];
  if (text !== undefined && text !== null) return { text, base64: null };
  if (base64 !== undefined && base64 !== null) return { text: null, base64 };
  return null;
}

export function toBase64(text) {
  const bytes = new TextEncoder().encode(text);
  let binary = "";
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary);
}

export function fromBase64(base64) {
  const binary = atob(base64);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

export function size(bytes) {
  if (bytes.text !== null) return new TextEncoder().encode(bytes.text).length;
  return (bytes.base64.length / 4) * 3 - (bytes.base64.endsWith("==") ? 2 : bytes.base64.endsWith("=") ? 1 : 0);
}

/** The first bytes in the format of `hexdump -C`. */
export function hexDump(base64, most = 4096) {
  const all = fromBase64(base64);
  const lines = [];
  for (let at = 0; at < Math.min(all.length, most); at += 16) {
    const row = [...all.slice(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const seen = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${seen}`);
  }
  if (all.length > most) lines.push(`… ${all.length - most} more bytes`);
  return lines.join("\n");
}
