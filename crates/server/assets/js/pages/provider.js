import { api, isAbort } from "../api.js";
import { h, replace } from "../elements.js";
import { absolute, bytes } from "../format.js";
import { actionButton, refusedPage } from "../actions.js";
import { problemBox } from "../problem_box.js";
import { may, refusal, session } from "../session.js";
import { messageFacts } from "../message_detail.js";

const SUPPORT = { native: "good", emulated: "warn", refused: "bad" };
const SEVERITY = { fine: "good", note: "info", warning: "warn", problem: "bad" };
const WORST_FIRST = ["problem", "warning", "note", "fine"];

// Commands are in backticks in the server's texts.
const withCode = (text) => text.split("`").map((part, i) => (i % 2 === 1 ? h("code", {}, part) : part));

export async function providerPage(view) {
  view.title("Provider");
  const refused = refusedPage("read");
  const health = h("div", { "data-test": "health", "aria-live": "polite" });
  const findings = h("div", { "data-test": "findings" });
  const capabilities = h("div");
  replace(
    view.root,
    h(
      "div.stack",
      { "data-test": "page-provider" },
      h("header.page-head", {}, h("h1", { tabindex: "-1" }, "Provider"), h("p.muted", {}, session.store ?? session.provider)),
      refused ?? [
        h("section.card", {}, h("div.section-head", {}, h("h2", {}, "Health"), h("span.spacer"), actionButton({ label: "Check health", test: "check-health", role: "read", small: true, run: checkHealth })), health),
        h("section.card", {}, h("div.section-head", {}, h("h2", {}, "Doctor"), h("span.spacer"), actionButton({ label: "Run again", test: "run-doctor", role: "operate", small: true, run: runDoctor })), findings),
        capabilities,
      ],
    ),
  );
  if (refused) return;

  async function checkHealth() {
    try {
      await api.get("/v1/health", { signal: view.signal });
      replace(health, h("p", { "data-test": "health-ok" }, h("span.dot.good", { "aria-hidden": "true" }), " The store answers. ", h("span.muted", {}, `Checked ${absolute(new Date().toISOString())}`)));
    } catch (error) {
      if (!isAbort(error)) replace(health, problemBox(error));
    }
  }

  async function runDoctor() {
    if (!may("operate")) {
      replace(findings, h("p.muted", { "data-test": "doctor-refused" }, refusal("operate")));
      return;
    }
    replace(findings, h("p.muted", {}, "Checking…"));
    try {
      const list = (await api.get("/v1/doctor", { signal: view.signal })).findings;
      list.sort((a, b) => WORST_FIRST.indexOf(a.severity) - WORST_FIRST.indexOf(b.severity));
      replace(findings, list.length === 0 ? h("p.muted", {}, "No findings.") : h("ul.findings", {}, list.map((one) => h("li", { "data-test": "finding", "data-severity": one.severity }, h(`span.pill.${SEVERITY[one.severity] ?? "plain"}`, {}, one.severity), h("div", {}, h("strong", {}, one.check), h("p", {}, one.found), one.fix ? h("p.fix", {}, h("span.muted", {}, "Fix: "), withCode(one.fix)) : null)))));
    } catch (error) {
      if (!isAbort(error)) replace(findings, problemBox(error));
    }
  }

  const found = await api.get("/v1/capabilities", { signal: view.signal });
  const { limits } = found;
  replace(
    capabilities,
    h("div.stack", {},
      h("section.card", { "data-test": "limits" }, h("h2", {}, "Limits"), messageFacts([
        ["Provider", found.provider],
        ["Server", found.server_version],
        ["Largest body", bytes(limits.max_body_bytes)],
        ["Largest headers", bytes(limits.max_header_bytes)],
        ["Longest delay", limits.max_delay],
        ["Longest lease", limits.max_visibility],
        ["Time resolution", limits.time_resolution],
        ["Dedup keys are kept", limits.dedup_window ?? "as long as the message lives"],
      ])),
      h("section", {}, h("div.section-head", {}, h("h2", {}, "Capabilities"), h("span.muted", {}, "native: done by the store; emulated: done by Postrider, at a cost; refused: a call that needs it fails")),
        h("table.list", { role: "table", "aria-label": "Capabilities", "data-test": "capability-table" },
          h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["Feature", "Support", "Cost or reason"].map((label) => h("th", { role: "columnheader", scope: "col" }, label)))),
          h("tbody", { role: "rowgroup" }, found.features.map((one) => h("tr", { role: "row", "data-test": "capability-row", "data-feature": one.feature }, h("td.main-cell", { role: "cell", "data-label": "Feature" }, one.name), h("td", { role: "cell", "data-label": "Support" }, h(`span.pill.${SUPPORT[one.support] ?? "plain"}`, {}, one.support)), h("td.wide-cell", { role: "cell", "data-label": "Note" }, one.note ?? ""))))))),
  );
  checkHealth();
  runDoctor();
  view.every(15_000, checkHealth);
}
