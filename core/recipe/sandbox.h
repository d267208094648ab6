// Sandbox: runs a recipe's Lua under limits and returns what it describes. Lua describes, C++ runs: after this,
// only function-valued schedules, mixing weights and `control` call back into Lua, through call().
#pragma once
#include "recipe/value.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::recipe {

struct Limits {
  uint64_t instructions = 50'000'000; // VM instructions and an equivalent charge for string work
  uint64_t memory_bytes = 256 << 20;
  int nesting = 100;               // tables within tables of the result, and C calls
  double seconds = 10;             // wall clock, a last resort
  uint64_t source_bytes = 4 << 20; // all Lua files together
};

struct SandboxConfig {
  std::filesystem::path library;           // recipes/lib: the Lua side of the API
  std::map<std::string, std::string> args; // --arg name=value, read with fvlm.arg
  std::vector<std::string> constructors;   // names of the schema: fvlm.<name> { } tags a table
  Limits limits;
};

class Sandbox {
 public:
  explicit Sandbox(SandboxConfig config);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Runs the file and returns its value. `require` reaches files below the recipe's folder and the library.
  // Throws Error(recipe) at the author's line.
  Value run(const std::filesystem::path& file);

  // Calls a function that the recipe left in a Value, under fresh limits.
  Value call(FunctionId function, std::span<const Value> arguments);

  // Every Lua file read, with its text: what the run stores beside the Plan.
  const std::map<std::filesystem::path, std::string>& files() const;

  // Which --arg names the recipe asked for (with their defaults), so that a misspelt one can be reported.
  const std::map<std::string, Value>& args_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fvlm::recipe
