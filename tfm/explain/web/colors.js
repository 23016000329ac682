// Colours that can be told apart by all: light to dark without a change of direction in lightness
// (after ColorBrewer's YlGnBu and viridis), and blue to orange through the background for signs.

const RAMPS = {
  light: {
    plain: ["#ffffff", "#e3f4d9", "#a8dbb9", "#4bb4c3", "#2b74b3", "#253494", "#081d58"],
    signed: ["#0b4f8a", "#4393c3", "#a6cfe5", "#f7f7f7", "#fbc58f", "#e08214", "#8a4004"],
  },
  dark: {
    plain: ["#0b0f18", "#2c2a5e", "#355f8d", "#21918c", "#44bf70", "#bddf26", "#fde725"],
    signed: ["#8fd0ff", "#3f93d2", "#245078", "#171c27", "#7a4a1c", "#d98432", "#ffc58a"],
  },
};
const tables = {};

const isDark = () => document.documentElement.dataset.theme === "dark";

function table(kind) {
  const theme = isDark() ? "dark" : "light", key = `${theme} ${kind}`;
  if (!tables[key]) {
    const stops = RAMPS[theme][kind].map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    tables[key] = Array.from({ length: 256 }, (_, i) => {
      const place = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
      return stops[low].map((c, j) => Math.round(c + (place - low) * (stops[low + 1][j] - c)));
    });
  }
  return tables[key];
}

// A scale turns a number into one of the 256 colours of a table.
function scaleOf(low, high, signed) {
  if (signed) {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { kind: "signed", low: -most, high: most };
  }
  return { kind: "plain", low: Math.min(low, 0), high: high > low ? high : low + 1 };
}

function colorAt(scale, x) {
  const share = (x - scale.low) / (scale.high - scale.low);
  return table(scale.kind)[Math.max(0, Math.min(255, Math.round(share * 255)))];
}

const css = (rgb) => `rgb(${rgb.join(",")})`;
const inkOn = ([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#10141d" : "#ffffff");
const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
