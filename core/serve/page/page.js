const $ = id => document.getElementById(id);
// The conversation: {role, text, thoughts, pictures, element}. Texts are only ever inserted as text.
let turns = [], attached = [], running = null, models = [], model = {id: "", fvlm: {}}, known = null;
let chosen = false; // whether the user chose to let models think, or not to
let preferred; // the name of the model that the user chose, where there were several
const numbers = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const kept = [...numbers, "system", "video_frames", "look", "think"];

function element(kind, className, text) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function button(label, run) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", run);
  return made;
}

function say(text) {
  $("status").textContent = text;
}

// Runs what changes the conversation; it stays at its end if it was there.
function atEnd(change) {
  const log = $("log"), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}

function pictureList(pictures) {
  const list = element("div", pictures.length > 4 ? "pictures many" : "pictures");
  for (const picture of pictures) {
    const image = element("img");
    image.src = picture.url;
    image.alt = picture.name;
    list.append(image);
  }
  return list;
}

function addTurn(turn) {
  turn.element = element("article", turn.role);
  turn.element.setAttribute("aria-label", turn.role === "user" ? "You" : "The model");
  if (turn.pictures?.length) turn.element.append(pictureList(turn.pictures));
  turn.words = element("div", "words", turn.text);
  turn.about = element("div", "about");
  turn.element.append(turn.words, turn.about);
  turns.push(turn);
  $("hint").hidden = true;
  atEnd(() => $("log").append(turn.element));
  offerChanges();
}

function removeTurns(count) {
  for (const turn of turns.splice(turns.length - count)) turn.element.remove();
  $("hint").hidden = turns.length > 0;
  offerChanges();
}

// Retry and Edit stand at the newest answer and message only.
function offerChanges() {
  for (const old of document.querySelectorAll(".change")) old.remove();
  if (running || turns.length === 0) return;
  const last = turns.at(-1), mine = turns.findLast(turn => turn.role === "user");
  const add = (turn, label, run) => {
    const made = button(label, run);
    made.classList.add("change");
    turn.about.append(made);
  };
  if (last.role === "assistant") add(last, "Retry", retry);
  if (mine) add(mine, "Edit", editLast);
}

function retry() {
  if (turns.at(-1)?.role !== "assistant") return;
  removeTurns(1);
  answer();
}

function editLast() {
  const place = turns.findLastIndex(turn => turn.role === "user");
  if (place < 0 || running) return;
  const {text, pictures} = turns[place];
  removeTurns(turns.length - place);
  $("text").value = text;
  attached = pictures;
  showAttached();
  fit();
  $("text").focus();
}

function restart() {
  running?.abort();
  removeTurns(turns.length);
  attached = [];
  showAttached();
  say("");
  $("text").focus();
}

function showAttached() {
  $("attached").hidden = attached.length === 0;
  $("attached").replaceChildren(...attached.map((picture, place) => {
    const item = element("li"), image = element("img");
    image.src = picture.url;
    image.alt = picture.name;
    const remove = button("×", () => {
      attached.splice(...(isClip(picture) ? [0, attached.length] : [place, 1]));
      showAttached();
    });
    remove.setAttribute("aria-label", `Remove ${picture.name}`);
    item.append(image, remove);
    return item;
  }));
}

// Whether it is a frame of a video that is one part of a message: all of its frames go together, and nothing beside them.
function isClip(picture) {
  return model.fvlm.video_part && picture.fps !== undefined;
}

async function attach(files) {
  await known;
  for (const file of files) {
    const shown = [...turns.flatMap(turn => turn.pictures ?? []), ...attached];
    const left = (model.fvlm.max_images ?? 64) - shown.length;
    const isVideo = file.type.startsWith("video/");
    if (model.fvlm.video_part && shown.length && (isVideo || shown.some(isClip)))
      return say("This model takes one video in a conversation, or pictures.");
    if (model.fvlm.max_images === 0) return say("This model reads text alone.");
    if (left < 1) return say("This conversation has as many pictures as the server takes.");
    say(`Reading ${file.name} …`);
    try {
      if (isVideo && model.fvlm.video_frames === 0) throw new Error("this model reads pictures and no videos");
      attached.push(...await picturesOf(file, Math.min(left, Number($("video_frames").value) || (model.fvlm.video_frames ?? left))));
      say("");
    } catch (error) {
      say(`${file.name}: ${error.message}`);
    }
    showAttached();
  }
}

function contentOf(turn) {
  const {pictures = [], text} = turn;
  if (!pictures.length) return text;
  const shown = isClip(pictures[0])
    ? [{type: "video", video: pictures.map(picture => picture.url), fps: pictures[0].fps}]
    : pictures.map(picture => ({type: "image_url", image_url: {url: picture.url}}));
  return [...shown, {type: "text", text}];
}

function requestBody() {
  const messages = turns.map(turn => ({role: turn.role, content: contentOf(turn), reasoning_content: turn.thoughts || undefined}));
  if ($("system").value) messages.unshift({role: "system", content: $("system").value});
  const body = {model: model.id || undefined, messages, stream: true, stream_options: {include_usage: true}};
  for (const name of numbers)
    if ($(name).value !== "") body[name] = Number($(name).value);
  const hasPictures = turns.some(turn => turn.pictures?.length);
  if (model.fvlm.thinking) body.chat_template_kwargs = {[model.fvlm.thinking.variable]: $("think").checked};
  if (model.fvlm.attention && $("look").checked && hasPictures) body.attention = true;
  return body;
}

function headers() {
  const given = {"Content-Type": "application/json"};
  if ($("token").value) given.Authorization = `Bearer ${$("token").value}`;
  return given;
}

// The events of a stream, as many at a time as have come. Between two lots the browser has time for keys and clicks, and
// the page is laid out once for each.
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    yield parts.map(part => part.replace(/^data: /, "")).filter(data => data !== "[DONE]").map(data => JSON.parse(data));
    await new Promise(resolve => setTimeout(resolve, 15));
  }
}

async function failureOf(response) {
  const text = await response.text();
  if (response.status === 401) askForToken();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `the server answered with status ${response.status}`;
  }
}

function showLook(turn, attention) {
  const most = Math.max(1e-9, ...attention.frames.flatMap(frame => frame.shares));
  const look = element("details", "look"), list = element("ol", "glances");
  look.open = true;
  look.append(element("summary", "", `Where the model looked: ${attention.frames.length} ${attention.frames.length === 1 ? "frame" : "frames"}`), list);
  attention.frames.forEach((frame, number) => {
    const item = element("li"), image = element("img");
    image.src = frame.image;
    image.alt = `Frame ${number + 1}, dark where the model did not look`;
    item.append(image, veilOf(frame.shares, attention.rows, attention.columns, most));
    list.append(item);
  });
  atEnd(() => turn.element.prepend(look));
}

// Thoughts are unfolded while they come.
function showThoughts(turn, text) {
  if (!turn.thinking) {
    const fold = element("details", "thoughts"), words = element("div", "words");
    fold.open = true;
    fold.append(element("summary", "", "Thinking …"), words);
    turn.thinking = {fold, words, begin: performance.now()};
    turn.thoughts = "";
    turn.words.before(fold);
  }
  turn.thoughts += text;
  turn.thinking.words.append(text);
}

function endThoughts(turn) {
  if (!turn.thinking) return;
  const {fold, begin} = turn.thinking;
  turn.thinking = null;
  fold.firstChild.textContent = `Thought for ${((performance.now() - begin) / 1000).toFixed(1)} s`;
  fold.open = false;
}

// Of the whole answer, the prompt included: several tokens may come in one piece.
function figures(usage, seconds, finish) {
  const parts = [`${usage.completion_tokens} tokens in ${seconds.toFixed(2)} s`];
  if (seconds > 0) parts.push(`${(usage.completion_tokens / seconds).toFixed(1)} tokens/s`);
  const cached = usage.prompt_tokens_details?.cached_tokens;
  parts.push(`prompt ${usage.prompt_tokens}${cached ? `, ${cached} of them cached` : ""}`);
  if (finish === "length") parts.push("reached max tokens");
  return parts.join(" · ");
}

// Streams the next answer.
async function answer() {
  running = new AbortController();
  const body = JSON.stringify(requestBody()), turn = {role: "assistant", text: ""};
  addTurn(turn);
  turn.element.setAttribute("aria-busy", "true");
  const note = element("span");
  if (models.length > 1) turn.about.append(element("span", "by", model.id));
  turn.about.append(note);
  setRunning(true);
  const {signal} = running;
  const begin = performance.now();
  let finish = "", usage = null;
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), body, signal});
    if (!response.ok) throw new Error(await failureOf(response));
    for await (const parts of eventsOf(response)) {
      signal.throwIfAborted();
      let text = "", thoughts = "";
      for (const part of parts) {
        if (part.error) throw new Error(part.error.message);
        if (part.attention) showLook(turn, part.attention);
        const choice = part.choices?.[0];
        text += choice?.delta?.content ?? "";
        thoughts += choice?.delta?.reasoning_content ?? "";
        finish = choice?.finish_reason || finish;
        usage = part.usage ?? usage;
      }
      if (thoughts) atEnd(() => showThoughts(turn, thoughts));
      if (!text) continue;
      turn.text += text;
      atEnd(() => {
        endThoughts(turn);
        turn.words.append(text);
      });
    }
    if (usage) note.textContent = figures(usage, (performance.now() - begin) / 1000, finish);
    if (!finish) throw new Error("the connection ended before the answer did");
    say("Answered.");
  } catch (error) {
    if (signal.aborted) {
      note.textContent = "stopped";
      say("Stopped.");
    } else {
      turn.element.classList.add("error");
      turn.words.append(turn.text ? `\n${error.message}` : error.message);
      say(`Not answered: ${error.message}`);
    }
  }
  endThoughts(turn);
  turn.element.removeAttribute("aria-busy");
  if (running?.signal === signal) {
    running = null;
    setRunning(false);
    offerChanges();
  }
}

function setRunning(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  if (on) say("Answering …");
}

function send() {
  const text = $("text").value.trim();
  if (running || (!text && attached.length === 0)) return;
  if (turns.at(-1)?.element.classList.contains("error")) removeTurns(1);
  if (turns.at(-1)?.role === "user") turns.pop(); // it was never answered; it stays to be read
  addTurn({role: "user", text, pictures: attached});
  attached = [];
  showAttached();
  $("text").value = "";
  fit();
  answer();
}

function fit() {
  const box = $("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function showSettings(open) {
  $("settings").hidden = !open;
  $("settings-button").setAttribute("aria-expanded", open);
}

function askForToken() {
  showSettings(true);
  $("token").focus();
}

function valueOf(name) {
  return $(name).type === "checkbox" ? "checked" : "value";
}

function keepSettings() {
  try {
    const values = kept.filter(name => name !== "think" || chosen).map(name => [name, $(name)[valueOf(name)]]);
    localStorage.setItem("settings", JSON.stringify({...Object.fromEntries(values), model: preferred}));
  } catch {} // a browser that keeps nothing
}

function restoreSettings() {
  try {
    const values = JSON.parse(localStorage.getItem("settings") ?? "{}");
    for (const name of kept)
      if (name in values) $(name)[valueOf(name)] = values[name];
    chosen = "think" in values;
    preferred = values.model;
  } catch {}
}

async function findModel() {
  const response = await fetch("/v1/models", {headers: headers()});
  if (!response.ok) throw new Error(await failureOf(response));
  models = (await response.json()).data;
  const several = models.length > 1;
  $("answering-label").hidden = !several;
  $("model").classList.toggle("said", several); // the choice says it
  $("answering").replaceChildren(...models.map(({id}) => new Option(id, id)));
  useModel(models.find(({id}) => id === preferred) ?? models[0]);
}

// Answers from now on are this model's.
function useModel(used) {
  model = used;
  $("answering").value = model.id;
  $("model").textContent = model.id;
  document.title = `${model.id}: chat`;
  $("look-label").hidden = !model.fvlm.attention;
  $("think-label").hidden = !model.fvlm.thinking;
  if (model.fvlm.thinking && !chosen) $("think").checked = model.fvlm.thinking.default;
  $("max_tokens").placeholder = model.fvlm.usual_tokens;
  $("max_tokens").max = model.fvlm.max_tokens;
  $("video_frames").placeholder = model.fvlm.video_frames;
  $("video_frames").max = model.fvlm.max_images;
}

function listen() {
  $("composer").addEventListener("submit", event => { event.preventDefault(); send(); });
  $("settings").addEventListener("submit", event => event.preventDefault());
  $("think").addEventListener("change", () => { chosen = true; });
  $("settings").addEventListener("change", keepSettings);
  $("answering").addEventListener("change", () => {
    preferred = $("answering").value;
    useModel(models.find(({id}) => id === preferred));
    keepSettings();
  });
  $("token").addEventListener("change", () => { known = findModel().then(() => say(""), error => say(error.message)); });
  $("settings-button").addEventListener("click", () => showSettings($("settings").hidden));
  $("new").addEventListener("click", restart);
  $("stop").addEventListener("click", () => running?.abort());
  $("text").addEventListener("input", fit);
  $("text").addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && $("text").value === "" && !running) {
      event.preventDefault();
      editLast();
    }
  });
  document.addEventListener("keydown", event => { if (event.key === "Escape") running?.abort(); });
  $("files").addEventListener("change", async event => {
    const files = [...event.target.files];
    event.target.value = "";
    await attach(files);
    $("text").focus();
  });
  document.addEventListener("paste", event => {
    if (event.clipboardData.files.length === 0) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
  document.addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("drop"); });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("drop"); });
  document.addEventListener("drop", event => {
    event.preventDefault();
    document.body.classList.remove("drop");
    attach([...event.dataTransfer.files]);
  });
}

restoreSettings();
listen();
known = findModel().catch(error => say(error.message));
