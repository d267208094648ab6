// resolve(): a recipe or a plan file becomes a frozen Plan. Every verb that needs a Plan starts here.
#pragma once
#include "recipe/plan.h"
#include "recipe/sandbox.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::recipe {

struct Request {
  std::filesystem::path file;              // a recipe (*.lua), or a plan file (*.json) that `plan --json` wrote
  std::vector<std::string> sets;           // --set path=value, in order
  std::map<std::string, std::string> args; // --arg name=value
  std::filesystem::path library;           // recipes/lib
  Limits limits = {};                      // of all that a recipe takes until it is a Plan
};

struct Resolved {
  plan::Plan plan;
  // SHA-256 over the canonical JSON of all that can change the numbers of the run.
  std::string hash;
  // Where each value was written, by its path: "recipes/mine.lua:12", "--set seed=7", "--arg size=2
  // (recipes/mine.lua:3)". A value that is not listed is a default.
  std::map<std::string, std::string> sources;
  std::string recipe;                                 // the file it was made from, as the user named it
  std::map<std::filesystem::path, std::string> files; // every Lua file read, with its text; none for a plan file
  std::shared_ptr<Sandbox> lua; // what `control` functions are called through; null for a plan file
};

// Throws RecipeError with every mistake that was found.
Resolved resolve(const Request& request);

// The Plan in a run's plan.json, which an earlier version may have written: fields that it did not know have their
// defaults, and its hash, under which it stands in that run's checkpoints, is not compared. Throws Error.
struct RecordedPlan {
  plan::Plan plan;
  std::string hash;
};
RecordedPlan read_recorded_plan(const std::filesystem::path& file);

// The document of `plan --json` and of runs/NAME/plan.json: format, hash, recipe, plan, sources. resolve() reads it
// back.
nlohmann::ordered_json plan_document(const Resolved& resolved);

} // namespace fvlm::recipe
