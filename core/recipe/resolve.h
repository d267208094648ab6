// resolve() turns a recipe or a plan file into a frozen Plan. Every verb that needs a Plan starts here.
#pragma once
#include "recipe/plan.h"
#include "recipe/sandbox.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::recipe {

struct Request {
  std::filesystem::path file;              // a recipe (*.lua), or a plan file (*.json) that `plan --json` wrote
  std::vector<std::string> sets;           // --set path=value, in order
  std::map<std::string, std::string> args; // --arg name=value
  std::filesystem::path library;           // recipes/lib
  Limits limits = {};                      // for everything from the recipe file to the Plan
  // Fills in what plan::Model::directory says of the model. Throws Error. Not needed for a plan file, which has it.
  std::function<void(plan::Model& model)> read_model_directory = {};
  // model.image_size of a recipe that does not mention it, where the model's folders say one.
  std::function<std::optional<int64_t>(const plan::Model&)> image_size = {};
};

struct Resolved {
  plan::Plan plan;
  // SHA-256 of the canonical JSON of everything that can change the results of the run.
  std::string hash;
  // Path of a value -> where it was written: "recipes/mine.lua:12", "--set seed=7", "--arg size=2
  // (recipes/mine.lua:3)". A value that is not listed is a default.
  std::map<std::string, std::string> sources;
  std::string recipe;                                 // the recipe or plan file, as the user named it
  std::map<std::filesystem::path, std::string> files; // every Lua file read, with its text; none for a plan file
  std::shared_ptr<Sandbox> lua;                       // calls `control` functions; null for a plan file
};

// Throws RecipeError with every mistake.
Resolved resolve(const Request& request);

// The Plan in a run's plan.json, which an earlier version may have written. Fields unknown to that version have their
// defaults. The hash is the recorded one, as in the run's checkpoints, and is not verified. Throws Error.
struct RecordedPlan {
  plan::Plan plan;
  std::string hash;
};
RecordedPlan read_recorded_plan(const std::filesystem::path& file);

// The document of `plan --json` and runs/NAME/plan.json: format, hash, recipe, plan, sources. resolve() can read it.
nlohmann::ordered_json plan_document(const Resolved& resolved);

} // namespace fvlm::recipe
