#include "recipe/sandbox.h"

#include "recipe/sandbox_interpreter.h"

namespace fvlm::recipe {

struct Sandbox::State {
  explicit State(SandboxConfig config) : lua(std::move(config)) {}
  Interpreter lua;
  bool ran = false;
};

Sandbox::Sandbox(SandboxConfig config) : state_(std::make_unique<State>(std::move(config))) {}
Sandbox::~Sandbox() = default;

Value Sandbox::run(const std::filesystem::path& file, Allowance* allowance) {
  if (std::exchange(state_->ran, true)) throw Error(ErrorKind::internal, "a Sandbox runs one recipe, once");
  Interpreter& lua = state_->lua;
  lua.reset_account(allowance ? allowance->remaining(lua.config.limits) : lua.config.limits, false);
  lua.folder = file.parent_path();
  std::string name = file.string();
  Value result;
  lua.loading.push_back(name);
  try {
    lua.protect([&](lua_State* L) {
      lua.load(L, file, name, "");
      lua_call(L, 0, 1);
      result = to_value(L, -1, {name, 0}, lua.sources.front().get());
    });
  } catch (Error& error) {
    if (error.where().empty()) error.at(name);
    throw;
  }
  lua.loading.clear();
  if (auto* table = std::get_if<std::shared_ptr<const Table>>(&result.data)) result.origin = (*table)->origin;
  lua.finished = true;
  lua_gc(lua.main, LUA_GCCOLLECT);
  if (allowance) allowance->charge({name, 0, {}}, lua.spent, lua.memory_used + lua.result_bytes);
  return result;
}

Value Sandbox::call(FunctionId function, std::span<const Value> arguments, std::vector<Value>* arguments_after,
                    Allowance* allowance) {
  constexpr uint64_t cost = 100; // in instructions, for the call itself
  Interpreter& lua = state_->lua;
  lua.reset_account(allowance ? allowance->remaining(lua.config.call_limits) : lua.config.call_limits, true);
  Value result;
  Origin origin;
  std::vector<Value> after;
  auto run = [&](lua_State* L) {
    push_functions(L);
    if (lua_rawgeti(L, 1, function.index + 1) != LUA_TFUNCTION)
      throw Error(ErrorKind::internal, "the recipe has no function {}", function.index);
    lua_Debug about;
    lua_pushvalue(L, -1);
    lua_getinfo(L, ">S", &about);
    const SourceFile* source = lua.source_of(about);
    origin = {source ? source->name : std::string(), about.linedefined, {}};
    int first = lua_gettop(L) + 1; // the arguments stay below the call for arguments_after
    lua_insert(L, 1);
    luaL_checkstack(L, static_cast<int>(2 * arguments.size() + 10), "too many arguments");
    for (const Value& argument : arguments) push_value(L, argument);
    lua_pushvalue(L, 1);
    for (size_t i = 0; i < arguments.size(); i++) lua_pushvalue(L, first + static_cast<int>(i));
    lua_call(L, static_cast<int>(arguments.size()), 1);
    result = to_value(L, -1, origin);
    for (size_t i = 0; arguments_after && i < arguments.size(); i++)
      after.push_back(to_value(L, first + static_cast<int>(i), origin));
  };
  struct CollectGarbage { // also after an error, so that the next call starts with live objects only
    lua_State* L;
    ~CollectGarbage() { lua_gc(L, LUA_GCCOLLECT); }
  } collect{lua.main};
  const auto charge_allowance = [&] {
    if (allowance) allowance->charge(origin, lua.spent + cost);
  };
  try {
    lua.protect(run);
  } catch (const Error&) {
    charge_allowance(); // where this exhausts the allowance, that error is thrown instead
    throw;
  }
  charge_allowance();
  if (arguments_after) *arguments_after = std::move(after);
  return result;
}

const std::map<std::filesystem::path, std::string>& Sandbox::files() const {
  return state_->lua.files;
}

const std::map<std::string, Value>& Sandbox::args_read() const {
  return state_->lua.args_read;
}

} // namespace fvlm::recipe
