// Interpreter: one Lua state, what it may spend, and the files it was given. Internal to the sandbox.
//
// Lua is built as C++: a Lua error is a C++ exception, and destructors run. No other exception may cross Lua's frames
// (a protected call would swallow it), so C functions raise Lua errors only.
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
  std::string name;   // as the user would name it
  std::string chunk;  // what Lua puts in front of its messages: the name, or its tail where it is long
  SourceMap lines;    // of the text that Lua was given
  std::string module; // "fvlm.three_stages", where it is of the library
  bool bundled;       // of the library: errors blame its caller
};

struct Interpreter {
  explicit Interpreter(SandboxConfig config);
  ~Interpreter() = default;
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  static Interpreter& of(lua_State* L) { return **static_cast<Interpreter**>(lua_getextraspace(L)); }

  // --- What it may spend (sandbox_limits.cpp) ---

  // Sets the account to nothing spent. Memory is counted beyond what is in use now if `beyond` says so.
  void begin(const Limits& limits, bool beyond);

  // Counts work done in C++ as so many instructions; stops when there are too many or time is up.
  void charge(lua_State* L, uint64_t instructions) {
    spent += instructions;
    if (spent > next_look) look(L);
  }
  void charge_bytes(lua_State* L, uint64_t bytes) { charge(L, bytes / bytes_per_instruction + 1); }

  // Ends the evaluation with `error`, whose place is the author's line if it has none. Nothing in Lua can catch it.
  [[noreturn]] void stop(lua_State* L, Error error);
  [[noreturn]] void stop_for_memory(lua_State* L, const Origin& place = {});
  Error memory_error(const Origin& place) const;

  // To be called after every protected call made for the author: raises again what must not be caught.
  void pass_stop(lua_State* L, int status);

  // --- Where the author is (sandbox_errors.cpp) ---

  // The innermost line of the author's own files, from stack level `level` on; file empty if there is none.
  Origin author_line(lua_State* L, int level = 0);
  const SourceFile* source_of(const lua_Debug& frame) const;

  // Runs `body` as a C function in Lua's protected mode; what goes wrong in it comes out as an Error.
  void protect(const std::function<void(lua_State*)>& body);

  // --- Files (sandbox_files.cpp) ---

  // Reads and compiles a file; the function is left on the stack.
  // `module`: what a file of the library is required as; empty for the author's own.
  void load(lua_State* L, const std::filesystem::path& path, const std::string& name, const std::string& module);

  SandboxConfig config;
  lua_State* main = nullptr;
  std::vector<lua_State*> threads; // those that run: main, the coroutine it resumed, ...

  static constexpr uint64_t bytes_per_instruction = 32;
  // Of a caught error, in instructions: it is a C++ exception, which may have to leave 200 calls within one another.
  static constexpr uint64_t unwinding_cost = 10'000;
  Limits limits;
  uint64_t spent = 0, next_look = 0;
  uint64_t memory_used = 0, memory_limit = 0, next_collect = 0;
  std::chrono::steady_clock::time_point deadline;
  bool hurried = false;         // the hook was asked to come at the next instruction
  Origin starved;               // where memory last ran out
  std::optional<Error> stopped; // set once; every protected call raises it again
  std::optional<Error> failure; // made by the message handler from a plain Lua error

  std::filesystem::path folder; // of the recipe, as the user named it; empty: "."
  std::vector<std::unique_ptr<const SourceFile>> sources;
  std::vector<std::string> loading; // names of the files that are being run, outermost first
  std::map<std::filesystem::path, std::string> files;
  uint64_t source_bytes = 0;
  uint64_t result_bytes = 0; // of the Value tree, about
  bool finished = false;     // the recipe has been evaluated: no more files

  std::map<std::string, Value> args_read;
  int functions = 0; // FunctionIds given out
  int printed = 0;

 private:
  void look(lua_State* L);
  void hurry(lua_State* L);
  void collect(lua_State* L);
  static void hook(lua_State* L, lua_Debug* frame);
  static void* allocate(void* self, void* block, size_t old_size, size_t new_size);
  bool take(size_t old_size, size_t new_size);

  struct Close {
    void operator()(lua_State* L) const { lua_close(L); }
  };
  std::unique_ptr<lua_State, Close> state; // closed before the account goes
};

// Counts memory that C++ holds on behalf of the author, as long as it lives.
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

// --- Tables of ours ---

// Replaces the table on top by a stand-in that reads from it and refuses to be written.
void make_read_only(lua_State* L);
// If the value at `index` is such a stand-in, pushes the table behind it.
bool push_behind(lua_State* L, int index);
// If the value at `index` came from a constructor, pushes its tag: constructor, source, line, arguments.
bool push_tag(lua_State* L, int index);
// The constructor that the function at `index` is, or null.
const Constructor* constructor_at(lua_State* L, int index);
// Pushes the text of any value: no addresses.
const char* push_text(lua_State* L, int index, size_t* length = nullptr);

// --- Between Lua and Value (lua_value.cpp) ---

// `written` is where the author wrote the value; `returned_by` the file that returned it. Throws Error.
Value to_value(lua_State* L, int index, const Origin& written, const SourceFile* returned_by = nullptr);
void push_value(lua_State* L, const Value& value);
// The registry's table of functions in Values, by FunctionId.
void push_functions(lua_State* L);

} // namespace fvlm::recipe
