// Interpreter: one Lua state, its limits, and the files it has read. Internal to the sandbox.
//
// Lua is compiled as C++, so a Lua error is a C++ exception and destructors run. No other exception may cross Lua
// frames, because a protected call would swallow it: C functions raise Lua errors only.
#pragma once
#include "base/error.h"
#include "recipe/lua_source.h"
#include "recipe/sandbox.h"

#include <lua.h>
#include <lualib.h>

#include <chrono>
#include <functional>
#include <lauxlib.h>
#include <optional>

namespace fvlm::recipe {

struct SourceFile {
  SourceFile(std::string given_name, std::string given_chunk, std::string text, std::string given_module)
      : name(std::move(given_name)), chunk(std::move(given_chunk)), lines(std::move(text)),
        module(std::move(given_module)), bundled(!module.empty()) {}
  std::string name;   // as the user would write it
  std::string chunk;  // the prefix of Lua's messages: the name, or its tail where it is long
  SourceMap lines;    // positions in the text that Lua was given
  std::string module; // "fvlm.three_stages" for a file of the bundled library
  bool bundled;       // part of the bundled library: errors are attributed to its caller
};

struct Interpreter {
  explicit Interpreter(SandboxConfig config);
  ~Interpreter() = default;
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  static Interpreter& of(lua_State* L) { return **static_cast<Interpreter**>(lua_getextraspace(L)); }

  // --- Limits (sandbox_limits.cpp) ---

  // Resets what was spent to 0. With `on_top_of_used_memory`, memory that is in use now does not count.
  void reset_account(const Limits& limits, bool on_top_of_used_memory);

  // Charges work done in C++ as a number of instructions. Stops the evaluation where a limit is exceeded.
  void charge(lua_State* L, uint64_t instructions) {
    spent += instructions;
    if (spent > next_check) check_limits(L);
  }
  void charge_bytes(lua_State* L, uint64_t bytes) { charge(L, bytes / bytes_per_instruction + 1); }

  // Ends the evaluation with `error`, located at the author's line if it has no location. Lua code cannot catch it.
  [[noreturn]] void stop(lua_State* L, Error error);
  [[noreturn]] void stop_for_memory(lua_State* L, const Origin& place = {});
  Error memory_error(const Origin& place) const;

  // Call it after every protected call on behalf of the author: rethrows what the author must not catch.
  void rethrow_stop(lua_State* L, int status);

  // --- Error locations (sandbox_errors.cpp) ---

  // The innermost line in the author's own files, starting at stack level `level`. The file is empty if there is none.
  Origin author_line(lua_State* L, int level = 0);
  const SourceFile* source_of(const lua_Debug& frame) const;

  // Runs `body` as a C function in Lua's protected mode. Any failure is thrown as an Error.
  void protect(const std::function<void(lua_State*)>& body);

  // --- Files (sandbox_files.cpp) ---

  // Reads and compiles a file, and leaves its function on the stack. `module` is the name that a file of the library is
  // required as, and empty for the author's files.
  void load(lua_State* L, const std::filesystem::path& path, const std::string& name, const std::string& module);

  SandboxConfig config;
  lua_State* main = nullptr;
  std::vector<lua_State*> threads; // running threads: main, the coroutine that it resumed, ...

  static constexpr uint64_t bytes_per_instruction = 32;
  // Cost of a caught error, in instructions: it is a C++ exception that may unwind 200 nested calls.
  static constexpr uint64_t unwinding_cost = 10'000;
  Limits limits;
  uint64_t spent = 0, next_check = 0;
  uint64_t memory_used = 0, memory_limit = 0, next_collect = 0;
  std::chrono::steady_clock::time_point deadline;
  bool check_scheduled = false; // the hook runs at the next instruction
  Origin out_of_memory_at;      // the author's line, if known
  std::optional<Error> stopped; // set once; every protected call rethrows it
  std::optional<Error> failure; // made by the message handler from a plain Lua error

  std::filesystem::path folder; // of the recipe, as the user wrote it; empty: "."
  std::vector<std::unique_ptr<const SourceFile>> sources;
  std::vector<std::string> loading; // names of the files that are running, outermost first
  std::map<std::filesystem::path, std::string> files;
  uint64_t source_bytes = 0;
  uint64_t result_bytes = 0; // estimated size of the Value tree
  bool finished = false;     // the recipe has been evaluated: no more files are read

  std::map<std::string, Value> args_read;
  int functions = 0; // number of FunctionIds assigned
  int printed = 0;

 private:
  void check_limits(lua_State* L);
  void check_soon(lua_State* L);
  void collect(lua_State* L);
  static void hook(lua_State* L, lua_Debug* frame);
  static void* allocate(void* self, void* block, size_t old_size, size_t new_size);
  bool reserve(size_t old_size, size_t new_size);

  struct Close {
    void operator()(lua_State* L) const { lua_close(L); }
  };
  std::unique_ptr<lua_State, Close> state; // declared last: closing it still updates the members above
};

// Counts memory that C++ holds on behalf of the author, for the lifetime of this object.
class MemoryClaim {
 public:
  MemoryClaim(lua_State* L, uint64_t bytes);
  ~MemoryClaim() { owner_.memory_used -= bytes_; }
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;

 private:
  Interpreter& owner_;
  uint64_t bytes_;
};

// --- The libraries ---

// Each pushes its table.
int open_base(lua_State* L);      // lua_base.cpp
int open_coroutine(lua_State* L); // lua_coroutine.cpp
int open_string(lua_State* L);    // lua_string.cpp
int open_table(lua_State* L);     // lua_table.cpp
int open_math(lua_State* L);      // lua_math.cpp
int open_utf8(lua_State* L);      // lua_math.cpp
int open_fvlm(lua_State* L);      // lua_fvlm.cpp
int require(lua_State* L);        // sandbox_files.cpp

// --- The engine's own tables ---

// Replaces the table on top of the stack by a read-only proxy.
void make_read_only(lua_State* L);
// If the value at `index` is such a proxy, pushes the table behind it.
bool push_proxied(lua_State* L, int index);
// If the value at `index` was made by a constructor, pushes its tag: constructor, source, line, arguments.
bool push_tag(lua_State* L, int index);
// The constructor that the function at `index` implements, or null.
const Constructor* constructor_at(lua_State* L, int index);
// Pushes the text of any value, without addresses.
const char* push_text(lua_State* L, int index, size_t* length = nullptr);

// --- Fields that are computed when they are read (lua_lazy.cpp) ---

// To the Lua table on top of the stack: `table`'s.
void add_lazy_fields(lua_State* L, const std::shared_ptr<const Table>& table);
// If the value at `index` is a table with some that were not read, makes it a plain one that has all of them.
void compute_lazy_fields(lua_State* L, int index);

// --- Between Lua and Value (lua_value.cpp) ---

// `written` is where the author wrote the value, `returned_by` the file that returned it. Throws Error.
Value to_value(lua_State* L, int index, const Origin& written, const SourceFile* returned_by = nullptr);
void push_value(lua_State* L, const Value& value);
// The registry's table of functions in Values, by FunctionId.
void push_functions(lua_State* L);

} // namespace fvlm::recipe
