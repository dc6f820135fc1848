import { api } from "../api.js";
import { freshId, h, replace } from "../elements.js";
import { problemBox } from "../problem_box.js";
import { navigate } from "../router.js";
import { session } from "../session.js";

/** The page to open after the login: a path of this dashboard only. */
function destination(view) {
  const from = view.query.get("from") ?? "/";
  return from === "/" || (from.startsWith("/ui/") && !from.startsWith("/ui/login")) ? from : "/";
}

/** `enter` reloads the session and returns whether it is authenticated. */
export async function loginPage(view, enter) {
  view.title("Log in");
  if (session.authenticated) {
    navigate(destination(view), { replace: true });
    return;
  }
  const id = freshId("token");
  const input = h("input", { id, type: "password", autocomplete: "current-password", spellcheck: "false", placeholder: "prt_…", "data-test": "login-token" });
  const problem = h("div");
  const button = h("button.btn.primary", { type: "submit", "data-test": "login-button" }, "Log in");
  const form = h("form.login", { "data-test": "page-login" }, h("h1", { tabindex: "-1" }, "Log in"), h("p.muted", {}, "This server needs a token. An administrator can create one on the page “Tokens”, or with ", h("code", {}, "postrider token create"), "."), h("div.field", {}, h("label", { for: id }, "Token"), input), problem, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    replace(problem);
    try {
      await api.post("/v1/session", { token: input.value.trim() });
      if (await enter()) navigate(destination(view), { replace: true });
      else throw new Error("The server accepted the token, but the browser did not keep the session. Allow cookies for this address.");
    } catch (error) {
      replace(problem, problemBox(error));
      input.focus();
      input.select();
    } finally {
      button.disabled = false;
    }
  });
  replace(view.root, form);
  input.focus();
}
