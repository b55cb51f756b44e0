// A linear probe: multinomial logistic regression on short vectors of the videos, learned in the browser in milliseconds.
// tests/search/page/test_probe.py compares it with the same computation in Python.
"use strict";
Page.probe = (() => {
  const ITERATIONS = 500; // probabilities are then within 0.002 of the minimum's
  const STRENGTH = 10; // inverse of the penalty per labeled video
  const FEW = 10, FEW_PER_LABEL = 3; // with fewer labels it can't be told how far the probe is right
  const MANY = 40; // labels: up to here each is left out alone, above them several together
  const TEMPERATURES = Array.from({ length: 25 }, (_, i) => 2 ** ((i - 8) / 4)); // 1/4 to 16
  let vectors = null; // {size, rows: Float32Array of unit vectors, present}

  function decode(values) {
    const bytes = Uint8Array.from(atob(values.bytes), (character) => character.charCodeAt(0));
    const whole = new Int8Array(bytes.buffer);
    const { size } = values;
    const rows = new Float32Array(whole.length);
    const present = new Uint8Array(whole.length / size).fill(values.present ? 0 : 1);
    for (const video of values.present || []) present[video] = 1;
    for (let start = 0; start < whole.length; start += size) {
      let sum = 0;
      for (let i = start; i < start + size; i++) sum += whole[i] * whole[i];
      const scale = sum ? 1 / Math.sqrt(sum) : 0;
      for (let i = start; i < start + size; i++) rows[i] = whole[i] * scale;
    }
    return { size, rows, present };
  }

  async function load() {
    vectors ||= decode(await Page.load("probe"));
    return vectors;
  }

  function softmax(values) {
    const most = Math.max(...values);
    const powers = values.map((value) => Math.exp(value - most));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
  }

  function logits(weights, rows, size, count, video) {
    const out = new Array(count).fill(0);
    for (let c = 0; c < count; c++) {
      let sum = weights[c * (size + 1) + size]; // bias
      for (let i = 0; i < size; i++) sum += weights[c * (size + 1) + i] * rows[video * size + i];
      out[c] = sum;
    }
    return out;
  }

  // Minimize the mean cross-entropy, every class with the same weight, plus |W|^2 / (2 n STRENGTH), by Nesterov's method.
  function fit({ size, rows }, labeled, count) { // labeled: [[video, class], ...]
    const counts = new Array(count).fill(0);
    for (const [, own] of labeled) counts[own] += 1;
    const penalty = 1 / (STRENGTH * labeled.length);
    const step = 1 / (1 + penalty); // vectors and bias: length of at most sqrt(2), so the curvature is at most 1
    let weights = new Float64Array(count * (size + 1)), ahead = weights;
    for (let k = 1; k <= ITERATIONS; k++) {
      const gradient = new Float64Array(weights.length);
      for (const [video, own] of labeled) {
        const share = 1 / (count * counts[own]);
        softmax(logits(ahead, rows, size, count, video)).forEach((value, c) => {
          const error = share * (value - (c === own ? 1 : 0));
          for (let i = 0; i < size; i++) gradient[c * (size + 1) + i] += error * rows[video * size + i];
          gradient[c * (size + 1) + size] += error;
        });
      }
      const next = ahead.map((value, i) => value - step * (gradient[i] + (i % (size + 1) === size ? 0 : penalty * value)));
      const momentum = (k - 1) / (k + 2);
      ahead = next.map((value, i) => value + momentum * (value - weights[i]));
      weights = next;
    }
    return weights;
  }

  // How far are the probabilities right? Every label is left out once, and suggested by a probe that learned from the
  // others; the temperature, by which all logits are divided, is the one that makes the labels that were left out
  // likeliest (Guo et al. 2017), every class with the same weight. {few, temperature, right, checked}
  function calibrate(data, labeled, count) {
    const counts = new Array(count).fill(0);
    for (const [, own] of labeled) counts[own] += 1;
    if (labeled.length < FEW || Math.min(...counts) < FEW_PER_LABEL) return { few: true, temperature: 1, right: 0, checked: 0 };
    const folds = labeled.length <= MANY ? labeled.length : Math.max(5, Math.round(MANY * MANY / labeled.length));
    const ordered = [...labeled].sort((a, b) => a[1] - b[1] || a[0] - b[0]); // every fold has labels of all kinds
    const out = []; // [logits, class]
    for (let fold = 0; fold < folds; fold++) {
      const weights = fit(data, ordered.filter((_, i) => i % folds !== fold), count);
      for (let i = fold; i < ordered.length; i += folds) out.push([logits(weights, data.rows, data.size, count, ordered[i][0]), ordered[i][1]]);
    }
    const surprise = (temperature) => out.reduce((sum, [values, own]) => sum - Math.log(Math.max(softmax(values.map((value) => value / temperature))[own], 1e-12)) / counts[own], 0);
    const losses = TEMPERATURES.map(surprise);
    const right = out.filter(([values, own]) => values.indexOf(Math.max(...values)) === own).length;
    return { few: false, temperature: TEMPERATURES[losses.indexOf(Math.min(...losses))], right, checked: out.length };
  }

  // Per unlabeled video {video, label, value, margin}: the likeliest label, its probability, and the lead over the second.
  // With a single label: the similarity to the mean of its videos.
  async function suggest(labels) {
    const data = await load();
    const names = [...new Set(labels.values())].sort();
    const labeled = [...labels].filter(([video]) => data.present[video]).map(([video, name]) => [video, names.indexOf(name)]);
    if (!labeled.length) return { names, rows: [] };
    const rest = [...data.present.keys()].filter((video) => data.present[video] && !labels.has(video));
    if (names.length === 1) return { names, rows: rest.map(similarityTo(data, labeled)) };
    const weights = fit(data, labeled, names.length);
    const checked = calibrate(data, labeled, names.length);
    return { names, ...checked, rows: rest.map((video) => {
      const values = softmax(logits(weights, data.rows, data.size, names.length, video).map((value) => value / checked.temperature));
      const order = values.map((_, c) => c).sort((a, b) => values[b] - values[a]);
      return { video, label: names[order[0]], value: values[order[0]], margin: values[order[0]] - values[order[1]] };
    }) };

    function similarityTo({ size, rows }, chosen) {
      const mean = new Float64Array(size);
      for (const [video] of chosen) for (let i = 0; i < size; i++) mean[i] += rows[video * size + i];
      const length = Math.hypot(...mean) || 1;
      return (video) => {
        let sum = 0;
        for (let i = 0; i < size; i++) sum += mean[i] * rows[video * size + i];
        return { video, label: names[0], value: sum / length, margin: 1 };
      };
    }
  }

  return { decode, fit, softmax, logits, calibrate, suggest, FEW, FEW_PER_LABEL };
})();
