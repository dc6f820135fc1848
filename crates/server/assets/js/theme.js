// Runs before the first paint, as a classic script: a module would be too late and the page would flash.
(() => {
  const chosen = (() => {
    try {
      return localStorage.getItem("postrider.theme");
    } catch {
      return null; // storage is refused in some private windows
    }
  })();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
