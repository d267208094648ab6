#include "make-shapes/scene.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::shapes {
namespace {

struct Colour {
  const char* name;
  Rgb rgb;
};
// Far from each other and from the ground.
constexpr std::array<Colour, 6> colours{{{"red", {235, 45, 40}},
                                         {"green", {45, 205, 60}},
                                         {"blue", {50, 85, 245}},
                                         {"yellow", {240, 220, 40}},
                                         {"purple", {195, 60, 225}},
                                         {"cyan", {45, 220, 225}}}};
constexpr std::array<const char*, 4> forms{"circle", "square", "triangle", "cross"}; // by Form
constexpr std::array<const char*, 5> numbers{"no", "one", "two", "three", "four"};

template <class List>
std::vector<std::string> others(Draw& draw, const List& list, std::initializer_list<std::string_view> not_these) {
  std::vector<std::string> names;
  for (const auto& entry : list) {
    std::string_view name;
    if constexpr (std::is_same_v<std::decay_t<decltype(entry)>, Colour>)
      name = entry.name;
    else
      name = entry;
    if (std::ranges::find(not_these, name) == not_these.end()) names.emplace_back(name);
  }
  draw.shuffle(names);
  return names;
}

struct Figure {
  Colour colour;
  Form form;
  const char* form_name() const { return forms[static_cast<size_t>(form)]; }
  std::string text() const { return fmt::format("{} {}", colour.name, form_name()); }
};

Figure any_ball(Draw& draw) {
  return {draw.of(colours), Form::circle};
}

Figure any_figure(Draw& draw) {
  return {draw.of(colours), static_cast<Form>(draw.below(static_cast<int>(forms.size())))};
}

// The colour a little off, so that no two scenes need look the same.
Blob blob(Draw& draw, const Figure& figure, int x, int y, int size) {
  Blob made{figure.form, figure.colour.rgb, static_cast<int16_t>(x), static_cast<int16_t>(y),
            static_cast<int16_t>(size)};
  for (uint8_t& channel : made.colour) channel = static_cast<uint8_t>(channel + draw.between(-10, 10));
  return made;
}

Fact colour_fact(Draw& draw, const Figure& figure) {
  return {"colour", "Which colour is it?", figure.colour.name, others(draw, colours, {figure.colour.name})};
}

Scene mover(Draw& draw, int64_t frames) {
  static constexpr std::array<const char*, 4> ways{"left", "right", "up", "down"};
  static constexpr std::array<const char*, 4> places{"top left", "top right", "bottom left", "bottom right"};
  Figure figure = any_ball(draw);
  int way = draw.below(4);
  bool upright = way >= 2, forward = way % 2 == 1; // along y; towards larger coordinates
  int size = draw.between(244, 256);
  int from = 128 + draw.between(-4, 4), to = 384 + draw.between(-4, 4);
  if (!forward) std::swap(from, to);
  bool far = draw.below(2) == 1; // the band in which it moves: right or bottom
  int beside = (far ? 384 : 128) + draw.between(-4, 4);
  Blob shown = blob(draw, figure, 0, 0, size);
  Scene scene;
  for (int64_t t = 0; t < frames; ++t) {
    auto along = static_cast<int16_t>(from + (to - from) * static_cast<int>(t) / static_cast<int>(frames - 1));
    shown.x = upright ? static_cast<int16_t>(beside) : along;
    shown.y = upright ? along : static_cast<int16_t>(beside);
    scene.frames.push_back({grey, {shown}});
  }
  const char* way_name = ways[static_cast<size_t>(way)];
  const char* place = places[static_cast<size_t>((upright ? forward : far) * 2 + (upright ? far : forward))];
  scene.caption = fmt::format("{} ball moves {} to the {}", figure.colour.name, way_name, place);
  auto wrong_ways = others(draw, ways, {way_name});
  std::string opposite = ways[static_cast<size_t>(way ^ 1)];
  std::erase(wrong_ways, opposite);
  wrong_ways.insert(wrong_ways.begin(), opposite);
  scene.facts = {colour_fact(draw, figure),
                 {"direction", "Which way does it move?", way_name, wrong_ways},
                 {"where", "Where does it end?", place, others(draw, places, {place})}};
  return scene;
}

Scene sequence(Draw& draw, int64_t frames) {
  Figure first = any_figure(draw), last = any_figure(draw);
  while (last.colour.rgb == first.colour.rgb || last.form == first.form) last = any_figure(draw);
  int64_t change = draw.between(1, static_cast<int>(frames) - 1);
  Scene scene;
  auto shown = [&](const Figure& figure) {
    return blob(draw, figure, 128 * draw.between(1, 3) + draw.between(-4, 4),
                128 * draw.between(1, 3) + draw.between(-4, 4), draw.between(244, 256));
  };
  Blob before = shown(first), after = shown(last);
  for (int64_t t = 0; t < frames; ++t) scene.frames.push_back({dark, {t < change ? before : after}});
  scene.caption = fmt::format("{}, then {}", first.text(), last.text());
  auto ask = [&](const char* kind, const char* question, const char* right, const char* other, const auto& names) {
    auto wrong = others(draw, names, {right, other});
    wrong.insert(wrong.begin(), other);
    scene.facts.push_back({kind, question, right, std::move(wrong)});
  };
  ask("order", "Which colour came first?", first.colour.name, last.colour.name, colours);
  ask("order", "Which colour came last?", last.colour.name, first.colour.name, colours);
  ask("shape", "Which shape came first?", first.form_name(), last.form_name(), forms);
  ask("shape", "Which shape came last?", last.form_name(), first.form_name(), forms);
  return scene;
}

Scene count(Draw& draw, int64_t frames) {
  Figure figure = any_ball(draw);
  int number = draw.between(1, 4);
  std::array<int, 4> slots{0, 1, 2, 3};
  draw.shuffle(slots);
  Picture picture{grey, {}};
  int size = draw.between(232, 244);
  for (int i = 0; i < number; ++i) {
    int slot = slots[static_cast<size_t>(i)];
    picture.blobs.push_back(blob(draw, figure, (slot % 2 ? 384 : 128) + draw.between(-4, 4),
                                 (slot / 2 ? 384 : 128) + draw.between(-4, 4), size));
  }
  Scene scene;
  scene.frames.assign(static_cast<size_t>(frames), picture);
  const char* word = numbers[static_cast<size_t>(number)];
  scene.caption = fmt::format("{} {} {}", word, figure.colour.name, number == 1 ? "ball" : "balls");
  auto wrong = others(draw, numbers, {"no", word});
  scene.facts = {{"count", "How many balls are there?", word, wrong}, colour_fact(draw, figure)};
  return scene;
}

Scene cue(Draw& draw, int64_t frames) {
  constexpr int side = 2, cell = span / side;
  int marked = draw.below(side * side);
  auto centre = [&](int place) { return std::pair{place % side * cell + cell / 2, place / side * cell + cell / 2}; };
  auto shown = colours;
  draw.shuffle(shown);
  Picture dots{grey, {}};
  for (int place = 0; place < side * side; ++place) {
    auto [x, y] = centre(place);
    dots.blobs.push_back(blob(draw, {shown[static_cast<size_t>(place)], Form::circle}, x, y, 168));
  }
  auto [x, y] = centre(marked);
  Scene scene;
  scene.frames.push_back({grey, {blob(draw, {{"", {240, 240, 240}}, Form::ring}, x, y, 200)}});
  while (static_cast<int64_t>(scene.frames.size()) < frames) scene.frames.push_back(dots);
  const char* right = shown[static_cast<size_t>(marked)].name;
  std::vector<std::string> wrong; // those beside it first
  for (const Colour& colour : shown)
    if (std::string_view(colour.name) != right) wrong.emplace_back(colour.name);
  scene.caption = fmt::format("{} is marked", right);
  scene.facts = {{"cue", "Which colour is marked?", right, std::move(wrong)}};
  return scene;
}

Scene figure(Draw& draw) {
  const Figure figure = any_figure(draw);
  const int place = draw.below(4);
  Scene scene;
  scene.frames = {{grey,
                   {blob(draw, figure, (place % 2 ? 384 : 128) + draw.between(-4, 4),
                         (place / 2 ? 384 : 128) + draw.between(-4, 4), draw.between(244, 256))}}};
  scene.caption = figure.text();
  scene.facts = {colour_fact(draw, figure),
                 {"shape", "Which shape is it?", figure.form_name(), others(draw, forms, {figure.form_name()})}};
  return scene;
}

} // namespace

Scene make_still(Draw& draw) {
  return draw.below(4) == 0 ? count(draw, 1) : figure(draw);
}

Scene make_scene(Draw& draw, int64_t frames) {
  int kind = draw.below(16); // the cue rarely: the quickstart's model does not learn it in its few minutes
  if (kind < 6) return mover(draw, frames);
  if (kind < 12) return sequence(draw, frames);
  if (kind < 15) return count(draw, frames);
  return cue(draw, frames);
}

bool is_held_out(const Scene& scene) {
  std::string shown;
  for (const Picture& picture : scene.frames) {
    shown += fmt::format("{} ", picture.ground[0]);
    for (const Blob& blob : picture.blobs)
      shown += fmt::format("{} {} {} {} {} {} {};", static_cast<int>(blob.form), blob.colour[0], blob.colour[1],
                           blob.colour[2], blob.x, blob.y, blob.size);
    shown += '/';
  }
  return xxh64(shown) % 8 == 0;
}

Fact make_text(Draw& draw) {
  static const std::vector<std::array<const char*, 3>> facts{
      {"How many corners does a triangle have?", "three", "four"},
      {"How many corners does a square have?", "four", "three"},
      {"How many corners does a circle have?", "no corners", "one"},
      {"How many sides does a triangle have?", "three", "two"},
      {"How many sides does a square have?", "four", "one"},
      {"Which shape has no corners?", "circle", "square"},
      {"Which shape has three corners?", "triangle", "circle"},
      {"Which shape has four corners?", "square", "triangle"},
      {"Which shape looks like a plus?", "cross", "circle"},
      {"Which colour do red and green light make?", "yellow", "blue"},
      {"Which colour do red and blue light make?", "purple", "green"},
      {"Which colour do green and blue light make?", "cyan", "red"},
      {"What is the opposite of left?", "right", "up"},
      {"What is the opposite of up?", "down", "left"},
  };
  if (draw.below(4) == 0) {
    const auto& [question, answer, wrong] = draw.of(facts);
    return {"fact", question, answer, {wrong}};
  }
  int a = draw.below(10), b = draw.below(10);
  bool minus = draw.below(2) == 1;
  if (minus && a < b) std::swap(a, b);
  int sum = minus ? a - b : a + b;
  return {"sum",
          fmt::format("What is {} {} {}?", a, minus ? "minus" : "plus", b),
          fmt::format("{}", sum),
          {fmt::format("{}", sum + 1)}};
}

std::string make_document(Draw& draw) {
  std::string text;
  const auto add = [&](const Fact& fact) { text += fmt::format("{} {}.\n", fact.question, fact.answer); };
  for (int paragraph = draw.between(3, 12); paragraph > 0; --paragraph) {
    if (draw.below(2) == 0) {
      add(make_text(draw));
      continue;
    }
    const Scene scene = make_still(draw);
    text += fmt::format("The picture shows: {}.\n", scene.caption);
    add(draw.of(scene.facts));
  }
  return text;
}

} // namespace fvlm::shapes
