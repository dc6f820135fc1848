// A classic script, as a module would run after the first paint and the page would flash.
(() => {
  const chosen = (() => {
    try {
      return localStorage.getItem("postrider.theme");
    } catch {
      return null; // some private windows refuse storage
    }
  })();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
