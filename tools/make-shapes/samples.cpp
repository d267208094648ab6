#include "make-shapes/samples.h"

#include "make-shapes/bpe_trainer.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm::shapes {
namespace {

using Json = nlohmann::ordered_json;

Scene scene_for(const Part& part, Draw& draw, int64_t frames) {
  for (;;) {
    Scene scene = part.still ? make_still(draw) : make_scene(draw, frames);
    if (is_held_out(scene) == part.held_out) return scene;
  }
}

// Four at most, the right one anywhere among them.
Json choices_of(const Fact& fact, Draw& draw) {
  std::vector<std::string> choices(fact.wrong.begin(),
                                   fact.wrong.begin() + std::min<ptrdiff_t>(3, std::ssize(fact.wrong)));
  choices.push_back(fact.answer);
  draw.shuffle(choices);
  auto right = std::ranges::find(choices, fact.answer) - choices.begin();
  return {{"user", fact.question}, {"choices", choices}, {"answer", right}, {"source", fact.kind}};
}

} // namespace

const std::vector<Part>& parts() {
  using enum Part::Says;
  static const std::vector<Part> all{{"captions", 60000, caption, false},
                                     {"text", 4000, text, false},
                                     {"questions", 48000, answer, false},
                                     {"pairs", 9600, pair, false},
                                     {"heldout/questions", 2000, choices, true},
                                     {"heldout/pairs", 1000, pair, true},
                                     {"documents", 0, document, false},
                                     {"heldout/documents", 0, document, true},
                                     {"stills/captions", 0, caption, false, true},
                                     {"stills/questions", 0, answer, false, true},
                                     {"heldout/stills", 0, choices, true, true}};
  return all;
}

Sample make_sample(const Part& part, uint64_t seed, uint64_t number, int64_t frames) {
  Draw draw(seed, part.name, number);
  if (part.says == Part::Says::text) {
    Fact fact = make_text(draw);
    return {{}, Json{{"user", fact.question}, {"assistant", fact.answer}, {"source", fact.kind}}.dump()};
  }
  if (part.says == Part::Says::document) return {{}, Json{{"text", make_document(draw)}}.dump()};
  Scene scene = scene_for(part, draw, frames);
  const Fact& fact = draw.of(scene.facts);
  Json json;
  switch (part.says) {
  case Part::Says::caption:
    json = {{"caption", scene.caption}, {"source", "shapes"}};
    break;
  case Part::Says::pair:
    json = {{"user", fact.question},
            {"chosen_assistant", fact.answer},
            {"rejected_assistant", fact.wrong.front()},
            {"source", fact.kind}};
    break;
  case Part::Says::choices:
    json = choices_of(fact, draw);
    break;
  default:
    json = {{"user", fact.question}, {"assistant", fact.answer}, {"source", fact.kind}};
  }
  json["frame_count"] = scene.frames.size();
  return {std::move(scene.frames), json.dump()};
}

std::string make_tokenizer() {
  BpeTrainer trainer;
  for (const char* text : {"system\n", "user\n", "assistant\n", "Describe this."}) trainer.add(text);
  auto learn = [&](const Fact& fact) {
    trainer.add(fact.question);
    trainer.add(fact.answer);
    for (const auto& wrong : fact.wrong) trainer.add(wrong);
  };
  for (uint64_t number = 0; number < 4096; ++number) { // every word many times
    Draw draw(0, "tokenizer", number);
    learn(make_text(draw));
    Scene scene = make_scene(draw, 2 + static_cast<int64_t>(number % 3));
    trainer.add(scene.caption);
    for (const Fact& fact : scene.facts) learn(fact);
  }
  return trainer.tokenizer_json();
}

} // namespace fvlm::shapes
