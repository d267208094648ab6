// Sandbox: runs a recipe's Lua under limits and returns what it describes. Lua describes, C++ runs: after this,
// only function-valued schedules, mixing weights and `control` call back into Lua, through call().
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

// A function of the `fvlm` table whose answer is a table that remembers its name and its line.
struct Constructor {
  std::string name;
  int leading = 0;   // values in front of the table: 1 for fvlm.stage "align" { }, also fvlm.stage("align", { })
  bool table = true; // false: values alone, fvlm.scale_lr(0.5), fvlm.stop_stage()
};

struct SandboxConfig {
  std::filesystem::path library;           // recipes/lib: `require "fvlm.NAME"` reads NAME.lua there
  std::map<std::string, std::string> args; // --arg name=value, read with fvlm.arg
  std::vector<Constructor> constructors;   // of the schema, those that `control` answers with among them
  Limits limits;
  // For one call(). Memory counts beyond what the run left behind.
  Limits call_limits{.instructions = 2'000'000, .memory_bytes = 32 << 20, .seconds = 2};
};

class Sandbox {
 public:
  explicit Sandbox(SandboxConfig config);
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  // Runs the file and returns its value. `require` reaches files below the recipe's folder and the library.
  // Throws Error(recipe) at the author's line. A Sandbox runs one recipe, once. `allowance`: what is spent is charged
  // to it, and no more than it holds may be.
  Value run(const std::filesystem::path& file, Allowance* allowance = nullptr);

  // Calls a function that the recipe left in a Value, under fresh limits. `arguments_after` receives the arguments as
  // the function left them: that is how `control` keeps its `memory`. An error leaves the Sandbox usable.
  Value call(FunctionId function, std::span<const Value> arguments, std::vector<Value>* arguments_after = nullptr,
             Allowance* allowance = nullptr);

  // Every Lua file read, with its text: what the run stores beside the Plan.
  const std::map<std::filesystem::path, std::string>& files() const;

  // Which --arg names the recipe asked for (with their defaults), so that a misspelt one can be reported.
  const std::map<std::string, Value>& args_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace fvlm::recipe
