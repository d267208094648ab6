// Sandbox: runs the Lua of a recipe under limits and returns its result. Lua only describes a run: afterwards, nothing
// but schedules, mixing weights and `control` that are functions calls back into Lua, through call().
#pragma once
#include "recipe/allowance.h"
#include "recipe/value.h"

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::recipe {

// A function of the `fvlm` table. The table that it returns records the function's name and the line of the call.
struct Constructor {
  std::string name;
  int leading = 0;   // values before the table: 1 for fvlm.stage "align" { }, also written fvlm.stage("align", { })
  bool table = true; // false: it takes values only, like fvlm.scale_lr(0.5) and fvlm.stop_stage()
};

struct SandboxConfig {
  std::filesystem::path library;           // recipes/lib: `require "fvlm.NAME"` reads NAME.lua there
  std::map<std::string, std::string> args; // --arg name=value, read with fvlm.arg
  std::vector<Constructor> constructors;   // of the schema, including those that `control` returns
  Limits limits;
  // For one call(). Memory that is in use when the call starts does not count.
  Limits call_limits{.instructions = 2'000'000, .memory_bytes = 32 << 20, .seconds = 2};
};

class Sandbox {
 public:
  explicit Sandbox(SandboxConfig config);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Runs the file and returns its value. `require` reaches files below the recipe's folder and the library.
  // Throws Error(recipe) at the author's line. A Sandbox runs one recipe, once. The cost is charged to `allowance` and
  // limited by what remains of it.
  Value run(const std::filesystem::path& file, Allowance* allowance = nullptr);

  // Calls a function from the recipe's result, under fresh limits. `arguments_after` receives the arguments as the
  // function modified them, which is how `control` keeps its `memory`. The Sandbox remains usable after an error.
  Value call(FunctionId function, std::span<const Value> arguments, std::vector<Value>* arguments_after = nullptr,
             Allowance* allowance = nullptr);

  // Every Lua file that was read, with its text. A run stores them beside the Plan.
  const std::map<std::filesystem::path, std::string>& files() const;

  // The --arg names that the recipe read, with their defaults, so that a misspelled one can be reported.
  const std::map<std::string, Value>& args_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fvlm::recipe
