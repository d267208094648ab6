// Enforces the limits of an evaluation: instructions, memory and time.
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

#include <cstdlib>

namespace fvlm::recipe {
namespace {

constexpr int hook_interval = 100;          // VM instructions between two checks
constexpr uint64_t check_interval = 16'384; // the same for instructions charged by C++

// A block of this size cannot be a Lua stack, which is limited to a million values.
constexpr size_t exceeds_any_stack = 17 << 20;
// How far the memory limit may be exceeded until the next check.
constexpr uint64_t overdraft = 2 * exceeds_any_stack;
constexpr size_t small_block = 1024;

Error too_much(std::string what, std::string advice) {
  Error error(ErrorKind::recipe, std::move(what));
  error.advise(std::move(advice));
  return error;
}

} // namespace

void Interpreter::reset_account(const Limits& granted, bool on_top_of_used_memory) {
  limits = granted;
  spent = result_bytes = 0;
  next_check = std::min(check_interval, limits.instructions);
  memory_limit = limits.memory_bytes + (on_top_of_used_memory ? memory_used : 0);
  next_collect = memory_used + limits.memory_bytes / 4;
  const auto seconds = std::chrono::duration<double>(limits.seconds);
  using Clock = std::chrono::steady_clock;
  deadline = limits.deadline.value_or(Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds));
  check_scheduled = false;
  out_of_memory_at = {};
  stopped.reset();
  failure.reset();
  threads.assign(1, main);
  lua_sethook(main, hook, LUA_MASKCOUNT, hook_interval);
}

void Interpreter::hook(lua_State* L, lua_Debug*) {
  Interpreter& self = of(L);
  self.spent += static_cast<uint64_t>(lua_gethookcount(L));
  if (!self.stopped && lua_gethookcount(L) != hook_interval) {
    self.check_scheduled = false;
    lua_sethook(L, hook, LUA_MASKCOUNT, hook_interval);
  }
  self.check_limits(L);
  if (self.memory_used > self.next_collect) self.collect(L);
}

// The collector does not run by itself, because a recipe could observe when. It runs at fixed points and is charged, so
// that a recipe cannot stay near the memory limit for long.
void Interpreter::collect(lua_State* L) {
  constexpr uint64_t bytes_per_collected_instruction = 64;
  spent += memory_used / bytes_per_collected_instruction;
  lua_gc(L, LUA_GCCOLLECT);
  next_collect = memory_used + std::max(memory_used, limits.memory_bytes / 4);
  if (memory_used > memory_limit) stop_for_memory(L);
}

// Makes the hook run at the next instruction, where the author's line is known.
void Interpreter::check_soon(lua_State* L) {
  next_check = 0;
  if (!L || check_scheduled) return;
  check_scheduled = true;
  lua_sethook(L, hook, LUA_MASKCOUNT, 1);
}

void Interpreter::check_limits(lua_State* L) {
  if (stopped) rethrow_stop(L, LUA_OK);
  next_check = std::min(spent + check_interval, limits.instructions);
  if (spent > limits.instructions)
    stop(L, too_much(fmt::format("more than {} instructions", limits.instructions),
                     finished ? "a function that is called later must be short: compute what it needs in the recipe"
                              : "is there an endless loop? a recipe should describe a run and compute little"));
  if (std::chrono::steady_clock::now() > deadline)
    stop(L,
         too_much(fmt::format("longer than {} seconds", limits.seconds),
                  "is there work on very long strings or tables? a recipe should describe a run and compute little"));
  if (memory_used > memory_limit) collect(L);
}

void Interpreter::stop(lua_State* L, Error error) {
  if (!stopped) {
    if (error.where().empty()) error.at(where(author_line(L)));
    stopped = std::move(error);
  }
  rethrow_stop(L, LUA_OK);
  std::abort(); // not reached
}

Error Interpreter::memory_error(const Origin& place) const {
  return too_much(fmt::format("more than {} of memory", human_bytes(limits.memory_bytes)),
                  "is there a table or a string that grows without end?")
      .at(where(place));
}

void Interpreter::stop_for_memory(lua_State* L, const Origin& place) {
  stop(L, memory_error(place));
}

void Interpreter::rethrow_stop(lua_State* L, int status) {
  if (!stopped) {
    if (status == LUA_OK || status == LUA_YIELD || status == LUA_ERRRUN || status == LUA_ERRERR ||
        status == LUA_ERRSYNTAX)
      return;
    if (status == LUA_ERRMEM) stop_for_memory(L, out_of_memory_at);
    stop(L, Error(ErrorKind::internal, "an exception other than Lua's crossed the evaluation of the recipe"));
  }
  // Code that runs while the stack unwinds (__close) reaches the hook at its first instruction.
  lua_sethook(L, hook, LUA_MASKCOUNT, 1);
  lua_pushlightuserdata(L, this);
  lua_error(L);
}

bool Interpreter::reserve(size_t old_size, size_t new_size) {
  if (new_size <= old_size) return true;
  lua_State* L = threads.empty() ? nullptr : threads.back();
  spent += (new_size - old_size) / bytes_per_instruction;
  if (spent > limits.instructions) check_soon(L);
  uint64_t needed = memory_used - old_size + new_size;
  if (needed <= memory_limit) return true;
  // The limit may be exceeded until the next instruction or charge, where the author's line is known. Here it must not
  // be looked up, because the frames are inconsistent while Lua reallocates its stack.
  check_soon(L);
  if (new_size < exceeds_any_stack && (needed <= memory_limit + overdraft || new_size <= small_block)) return true;
  // Lua now collects garbage and tries again, which is charged as well.
  spent += limits.memory_bytes / 64;
  if (L && new_size >= exceeds_any_stack) out_of_memory_at = author_line(L);
  return false;
}

void* Interpreter::allocate(void* self_pointer, void* block, size_t old_size, size_t new_size) {
  auto& self = *static_cast<Interpreter*>(self_pointer);
  if (!block) old_size = 0; // old_size is then the type of the new object
  if (new_size == 0) {
    std::free(block);
    self.memory_used -= old_size;
    return nullptr;
  }
  if (!self.reserve(old_size, new_size)) return nullptr;
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
  if (!main) throw Error(ErrorKind::recipe, "the memory limit is too small for Lua itself");
  *static_cast<Interpreter**>(lua_getextraspace(main)) = this;
  lua_gc(main, LUA_GCSTOP);
  reset_account(config.limits, false);
  protect([](lua_State* L) {
    lua_newtable(L);                                          // the author's _G
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE); // where Lua searches for the names of functions
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
