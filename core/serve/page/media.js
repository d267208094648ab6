"use strict";
// Files become data URLs of JPEG or PNG, which is what the server takes: pictures as they are where it can read them, the
// frames of a video drawn by the browser.

const longestSide = 1024, largestFile = 4 << 20;

function drawn(source, width, height) {
  const scale = Math.min(1, longestSide / Math.max(width, height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff"; // behind what is transparent
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(source, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("it cannot be read"));
    reader.readAsDataURL(file);
  });
}

async function pictureOf(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error("this browser cannot decode it");
  }
  const asItIs = (file.type === "image/jpeg" || file.type === "image/png") && file.size <= largestFile;
  const url = asItIs ? await dataUrl(file) : drawn(bitmap, bitmap.width, bitmap.height);
  bitmap.close();
  return url;
}

// One frame a second; where that is more than `most`, so many spread evenly, the first and the last included.
function frameTimes(seconds, most) {
  const count = Math.max(1, Math.ceil(seconds));
  if (count <= most) return Array.from({length: count}, (_, second) => second);
  return Array.from({length: most}, (_, frame) => most === 1 ? 0 : frame * (count - 1) / (most - 1));
}

function event(target, name) {
  return new Promise((resolve, reject) => {
    target.addEventListener(name, resolve, {once: true});
    target.addEventListener("error", () => reject(new Error("this browser cannot decode it")), {once: true});
  });
}

async function framesOf(file, most) {
  const video = document.createElement("video"), address = URL.createObjectURL(file);
  try {
    video.muted = true;
    video.preload = "auto";
    const opened = event(video, "loadeddata");
    video.src = address;
    await opened;
    if (!Number.isFinite(video.duration)) { // as of a recording; behind its end the browser knows
      const end = event(video, "seeked");
      video.currentTime = 1e9;
      await end;
    }
    if (!Number.isFinite(video.duration)) throw new Error("it does not say how long it is");
    const urls = [], times = frameTimes(video.duration, most);
    for (const time of times) {
      const shown = event(video, "seeked");
      video.currentTime = Math.min(time, Math.max(0, video.duration - 0.01));
      await shown;
      urls.push(drawn(video, video.videoWidth, video.videoHeight));
    }
    return {urls, fps: times.length > 1 ? 1 / (times[1] - times[0]) : 1};
  } finally {
    URL.revokeObjectURL(address);
  }
}

// The pictures of a file, each with what it is called; those of a video also with how many there are a second.
async function picturesOf(file, mostFrames) {
  if (file.type.startsWith("video/")) {
    const {urls, fps} = await framesOf(file, mostFrames);
    return urls.map((url, frame) => ({url, fps, name: `${file.name}, frame ${frame + 1} of ${urls.length}`}));
  }
  return [{url: await pictureOf(file), name: file.name || "picture"}];
}

// A veil over a frame: the darker a cell, the less the model looked at it, on a square-root scale up to `most`.
function veilOf(shares, rows, columns, most) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows);
  shares.forEach((share, cell) => {
    image.data.set([12, 10, 34, 215 * (1 - Math.sqrt(Math.min(1, share / most)))], 4 * cell);
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}
