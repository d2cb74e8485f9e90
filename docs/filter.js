// A search field of the class "filter" hides the rows of the page's tables without its words.
addEventListener("input", event => {
  if (!event.target.matches("input.filter")) return;
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("article tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
});
