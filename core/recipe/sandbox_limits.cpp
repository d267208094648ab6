// The account of an evaluation: instructions, memory, time. And the end of one that spends too much.
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

#include <cstdlib>
namespace fvlm::recipe {
namespace {

constexpr int hook_interval = 100;         // VM instructions between two looks
constexpr uint64_t look_interval = 16'384; // the same for work in C++

// A block this large is no Lua stack (those end at a million values).
constexpr size_t no_stack = 17 << 20;
// What an account may be overdrawn by until the next look.
constexpr uint64_t overdraft = 2 * no_stack;
constexpr size_t always_granted = 1024;

Error too_much(std::string what, std::string advice) {
  Error error(ErrorKind::recipe, std::move(what));
  error.advise(std::move(advice));
  return error;
}

} // namespace

void Interpreter::begin(const Limits& granted, bool beyond) {
  limits = granted;
  spent = result_bytes = 0;
  next_look = std::min(look_interval, limits.instructions);
  memory_limit = limits.memory_bytes + (beyond ? memory_used : 0);
  next_collect = memory_used + limits.memory_bytes / 4;
  deadline = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                    std::chrono::duration<double>(limits.seconds));
  hurried = false;
  starved = {};
  stopped.reset();
  failure.reset();
  threads.assign(1, main);
  lua_sethook(main, hook, LUA_MASKCOUNT, hook_interval);
}

void Interpreter::hook(lua_State* L, lua_Debug*) {
  Interpreter& self = of(L);
  self.spent += static_cast<uint64_t>(lua_gethookcount(L));
  if (!self.stopped && lua_gethookcount(L) != hook_interval) {
    self.hurried = false;
    lua_sethook(L, hook, LUA_MASKCOUNT, hook_interval);
  }
  self.look(L);
  if (self.memory_used > self.next_collect) self.collect(L);
}

// The collector does not run by itself (an author could see when); it runs at fixed places, and is paid for, so that to
// live near the limit does not last.
void Interpreter::collect(lua_State* L) {
  constexpr uint64_t bytes_looked_at = 64; // for the price of an instruction
  spent += memory_used / bytes_looked_at;
  lua_gc(L, LUA_GCCOLLECT);
  next_collect = memory_used + std::max(memory_used, limits.memory_bytes / 4);
  if (memory_used > memory_limit) stop_for_memory(L);
}

// The hook comes at the next instruction, on the author's line.
void Interpreter::hurry(lua_State* L) {
  next_look = 0;
  if (!L || hurried) return;
  hurried = true;
  lua_sethook(L, hook, LUA_MASKCOUNT, 1);
}

void Interpreter::look(lua_State* L) {
  if (stopped) pass_stop(L, LUA_OK);
  next_look = std::min(spent + look_interval, limits.instructions);
  if (spent > limits.instructions)
    stop(L, too_much(fmt::format("more than {} instructions", limits.instructions),
                     finished ? "a function that is called later has to be short: prepare what it needs in the recipe"
                              : "look for a loop that does not end; a recipe describes a run and computes little"));
  if (std::chrono::steady_clock::now() > deadline)
    stop(L, too_much(fmt::format("longer than {} seconds", limits.seconds),
                     "look for work on very long strings or tables; a recipe describes a run and computes little"));
  if (memory_used > memory_limit) collect(L);
}

void Interpreter::stop(lua_State* L, Error error) {
  if (!stopped) {
    if (error.where().empty()) error.at(where(author_line(L)));
    stopped = std::move(error);
  }
  pass_stop(L, LUA_OK);
  std::abort(); // not reached
}

Error Interpreter::memory_error(const Origin& place) const {
  return too_much(fmt::format("more than {} of memory", human_bytes(limits.memory_bytes)),
                  "look for a table or a string that grows without end")
      .at(where(place));
}

void Interpreter::stop_for_memory(lua_State* L, const Origin& place) {
  stop(L, memory_error(place));
}

void Interpreter::pass_stop(lua_State* L, int status) {
  if (!stopped) {
    if (status == LUA_OK || status == LUA_YIELD || status == LUA_ERRRUN || status == LUA_ERRERR ||
        status == LUA_ERRSYNTAX)
      return;
    if (status == LUA_ERRMEM) stop_for_memory(L, starved);
    stop(L, Error(ErrorKind::internal, "an exception that is not Lua's crossed the recipe's evaluation"));
  }
  // What still runs while the stack unwinds (__close) meets the hook at its first instruction.
  lua_sethook(L, hook, LUA_MASKCOUNT, 1);
  lua_pushlightuserdata(L, this);
  lua_error(L);
}

bool Interpreter::take(size_t old_size, size_t new_size) {
  if (new_size <= old_size) return true;
  lua_State* L = threads.empty() ? nullptr : threads.back();
  spent += (new_size - old_size) / bytes_per_instruction;
  if (spent > limits.instructions) hurry(L);
  uint64_t wanted = memory_used - old_size + new_size;
  if (wanted <= memory_limit) return true;
  // The account may be overdrawn until the next instruction or charge, where the line is known: here it may not be
  // asked for, since a stack that moves leaves its frames in disorder.
  hurry(L);
  if (new_size < no_stack && (wanted <= memory_limit + overdraft || new_size <= always_granted)) return true;
  // Lua collects its garbage now and asks again. That is paid for as well.
  spent += limits.memory_bytes / 64;
  if (L && new_size >= no_stack) starved = author_line(L);
  return false;
}

void* Interpreter::allocate(void* self_pointer, void* block, size_t old_size, size_t new_size) {
  auto& self = *static_cast<Interpreter*>(self_pointer);
  if (!block) old_size = 0; // it says what kind of object is wanted
  if (new_size == 0) {
    std::free(block);
    self.memory_used -= old_size;
    return nullptr;
  }
  if (!self.take(old_size, new_size)) return nullptr;
  void* moved = std::realloc(block, new_size);
  if (moved) self.memory_used += new_size - old_size;
  return moved;
}

MemoryClaim::MemoryClaim(lua_State* L, uint64_t bytes) : owner_(Interpreter::of(L)), bytes_(bytes) {
  owner_.charge_bytes(L, bytes);
  if (owner_.memory_used + bytes > owner_.memory_limit) lua_gc(L, LUA_GCCOLLECT);
  if (owner_.memory_used + bytes > owner_.memory_limit) owner_.stop_for_memory(L);
  owner_.memory_used += bytes;
}

Interpreter::Interpreter(SandboxConfig given) : config(std::move(given)) {
  memory_limit = config.limits.memory_bytes;
  state.reset(lua_newstate(allocate, this));
  main = state.get();
  if (!main) throw Error(ErrorKind::recipe, "the memory limit leaves no room for Lua itself");
  *static_cast<Interpreter**>(lua_getextraspace(main)) = this;
  lua_gc(main, LUA_GCSTOP);
  begin(config.limits, false);
  protect([](lua_State* L) {
    lua_newtable(L);                                          // what the author sees as _G
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE); // where Lua looks for the names of functions
    open_base(L);
    lua_setfield(L, -2, LUA_GNAME);
    static constexpr luaL_Reg libraries[] = {{"coroutine", open_coroutine},
                                             {"string", open_string},
                                             {"table", open_table},
                                             {"math", open_math},
                                             {"utf8", open_utf8}};
    for (auto [name, open] : libraries) {
      open(L);
      lua_pushvalue(L, -1);
      lua_setfield(L, 2, name);
      make_read_only(L);
      lua_setfield(L, 1, name);
    }
    lua_getfield(L, 2, LUA_GNAME);
    for (lua_pushnil(L); lua_next(L, 3);) {
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, 1);
    }
    lua_pushvalue(L, 1);
    lua_setfield(L, 1, LUA_GNAME);
    lua_pushvalue(L, 1);
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    open_fvlm(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "fvlm");
  });
}

} // namespace fvlm::recipe
