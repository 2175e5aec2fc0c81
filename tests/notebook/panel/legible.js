/* What cannot be read below `panel`: texts that reach beyond it, and texts whose colour is too close
   to what is behind them (WCAG 2 asks for a contrast of 4.5). */
(panel) => {
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d', { willReadFrequently: true });

  /** The luminance of colours painted over each other. */
  const luminance = (layers) => {
    for (const layer of layers) {
      context.fillStyle = layer;
      context.fillRect(0, 0, 1, 1);
    }
    const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data]
      .map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };

  const contrast = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      layers.unshift(getComputedStyle(at).backgroundColor);
    }
    const behind = luminance(layers);
    const text = luminance([...layers, getComputedStyle(node).color]);
    return (Math.max(behind, text) + 0.05) / (Math.min(behind, text) + 0.05);
  };

  const own = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const texts = [...panel.querySelectorAll('*')].filter(
    (node) => own(node) && node.getClientRects().length > 0 && !node.closest('.jsky-spoken')
  );
  const right = panel.getBoundingClientRect().right;
  const named = (nodes) => nodes.map((node) => `${node.className}: ${node.textContent}`);
  return {
    outside: named(texts.filter((node) => node.getBoundingClientRect().right > right)),
    faint: named(texts.filter((node) => contrast(node) < 4.5))
  };
};
