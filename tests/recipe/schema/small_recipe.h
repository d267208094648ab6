// The smallest valid recipe, as text and as a Value tree, and the errors of freeze() for a Value.
#pragma once
#include "build_value.h"
#include "recipe/freeze.h"

namespace fvlm::recipe::build {

inline Value small_stage(const std::string& name = "align", const std::vector<Key>& more = {}) {
  std::vector<Key> keys = {
      key("data", 11, table(11, "mix", {}, {value(11, "a.tar")})), key("objective", 12, table(12, "next_token", {})),
      key("optimizer", 13, table(13, "adamw", {key("lr", 13, 1e-3)})), key("samples", 14, 1000), key("batch", 15, 32)};
  for (auto& key : more) {
    std::erase_if(keys, [&](const Key& old) { return old.name == key.name; });
    keys.push_back(key);
  }
  return table(10, "stage", keys, {}, {value(10, name)});
}

inline Value small_recipe(std::vector<Value> stages = {small_stage()}, std::vector<Key> more = {}) {
  std::vector<Key> keys = {
      key("name", 2, "small"),
      key("model", 3, table(3, "model", {key("vision", 3, "weights/v"), key("decoder", 3, "weights/d")}))};
  for (auto& key : more) {
    std::erase_if(keys, [&](const Key& old) { return old.name == key.name; });
    keys.push_back(key);
  }
  return table(1, "recipe", keys, std::move(stages));
}

// "r.lua:14: stages.align.samples: expected ...\n  advice", a line or two for each mistake, in reading order.
inline std::vector<std::string> mistakes_of(Value recipe, const std::vector<std::string>& sets = {}) {
  Reader reader;
  freeze(std::move(recipe), sets, reader);
  std::vector<std::string> texts;
  if (!reader.mistakes.any()) return texts;
  RecipeError error(reader.mistakes.list());
  for (const auto& mistake : error.mistakes()) texts.push_back(mistake.text());
  return texts;
}

inline std::vector<std::string> of_stage(const std::vector<Key>& more, const std::vector<Key>& of_recipe = {}) {
  return mistakes_of(small_recipe({small_stage("align", more)}, of_recipe));
}

} // namespace fvlm::recipe::build
