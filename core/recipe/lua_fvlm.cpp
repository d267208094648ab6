// The `fvlm` table: fvlm.arg, and constructors, whose tables record the constructor's name and the line of the call.
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

namespace fvlm::recipe {
namespace {

const char tag_key = 0; // in the metatable of a constructed table: its tag

// Limits of what fvlm.arg stores outside of Lua's memory.
constexpr size_t max_args = 1000, max_arg_bytes = 10'000;

std::string usage(const Constructor& constructor) {
  std::string values;
  if (!constructor.table) {
    for (int i = 0; i < constructor.leading; i++) values += i ? ", value" : "value";
    return fmt::format("fvlm.{}({})", constructor.name, values);
  }
  for (int i = 0; i < constructor.leading; i++) values += "\"name\" ";
  return fmt::format("fvlm.{} {}{{ ... }}", constructor.name, values);
}

[[noreturn]] void misuse(lua_State* L, const Constructor& constructor, const std::string& got) {
  luaL_error(L, "fvlm.%s got %s\n  write %s", constructor.name.c_str(), got.c_str(), usage(constructor).c_str());
  std::abort(); // not reached
}

std::string described(lua_State* L, int index) {
  if (push_tag(L, index)) {
    lua_pop(L, 1);
    push_text(L, index);
    std::string text = lua_tostring(L, -1);
    lua_pop(L, 1);
    return text + " { }";
  }
  if (lua_isnil(L, index)) return "nil; is a variable not defined here?";
  return std::string("a ") + luaL_typename(L, index);
}

// The number of a source file, starting at 1. 0: none.
lua_Integer number_of(const Interpreter& self, const SourceFile* source) {
  for (size_t i = 0; i < self.sources.size(); i++)
    if (self.sources[i].get() == source) return static_cast<lua_Integer>(i) + 1;
  return 0;
}

// Pushes the tag of a constructed table: constructor, the author's source (0: unknown) and line, arguments, and the
// source and line of the call itself, which may be in the bundled library.
void push_new_tag(lua_State* L, const Constructor& constructor, int arguments) {
  Interpreter& self = Interpreter::of(L);
  lua_createtable(L, 6, 0);
  lua_pushstring(L, constructor.name.c_str());
  lua_rawseti(L, -2, 1);
  Origin place = self.author_line(L, 1);
  const SourceFile* author = nullptr;
  for (const auto& source : self.sources)
    if (source->name == place.file) author = source.get();
  lua_pushinteger(L, number_of(self, author));
  lua_rawseti(L, -2, 2);
  lua_pushinteger(L, place.line);
  lua_rawseti(L, -2, 3);
  lua_pushvalue(L, arguments);
  lua_rawseti(L, -2, 4);
  lua_Debug caller;
  const SourceFile* source = nullptr;
  if (lua_getstack(L, 1, &caller) && lua_getinfo(L, "Sl", &caller)) source = self.source_of(caller);
  lua_pushinteger(L, number_of(self, source));
  lua_rawseti(L, -2, 5);
  lua_pushinteger(L, source ? caller.currentline : 0);
  lua_rawseti(L, -2, 6);
}

// Pushes a new tagged table with the fields of the table at `given` (0: none).
int build(lua_State* L, const Constructor& constructor, int given, int arguments) {
  Interpreter& self = Interpreter::of(L);
  lua_newtable(L);
  int made = lua_gettop(L);
  if (given != 0) {
    if (lua_getmetatable(L, given)) {
      lua_pop(L, 1);
      std::string what = described(L, given);
      misuse(L, constructor, what == "a table" ? "a table with a metatable" : what);
    }
    for (lua_pushnil(L); lua_next(L, given);) {
      self.charge(L, 1);
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, made);
    }
  }
  lua_createtable(L, 0, 2);
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  push_new_tag(L, constructor, arguments);
  lua_rawsetp(L, -2, &tag_key);
  lua_setmetatable(L, made);
  return 1;
}

// Upvalues: the index of the constructor in the configuration; an array of the values given so far, or nil.
int construct(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  auto index = static_cast<size_t>(lua_tointeger(L, lua_upvalueindex(1)));
  const Constructor& constructor = self.config.constructors[index];
  int given = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "fvlm");
  if (given > 0 && lua_rawequal(L, 1, -1)) misuse(L, constructor, "the fvlm table: call it with a dot, not a colon");
  lua_settop(L, given);

  lua_newtable(L); // values before the table, those of earlier calls first
  int values = lua_gettop(L);
  lua_Integer count = 0;
  if (lua_istable(L, lua_upvalueindex(2)))
    for (lua_Integer i = 1; lua_rawgeti(L, lua_upvalueindex(2), i) != LUA_TNIL; i++) lua_rawseti(L, values, ++count);
  lua_settop(L, values);
  for (int i = 1; i <= given; i++) {
    int type = lua_type(L, i);
    if (type == LUA_TTABLE && constructor.table && count == constructor.leading) {
      if (i < given) misuse(L, constructor, "another argument after its table");
      return build(L, constructor, i, values);
    }
    if (count == constructor.leading || (type != LUA_TSTRING && type != LUA_TNUMBER && type != LUA_TBOOLEAN))
      misuse(L, constructor, described(L, i));
    lua_pushvalue(L, i);
    lua_rawseti(L, values, ++count);
  }
  if (count < constructor.leading && (given == 0 || !constructor.table))
    misuse(L, constructor, fmt::format("{} of {} values", count, constructor.leading));
  if (!constructor.table || constructor.leading == 0) return build(L, constructor, 0, values);
  lua_pushinteger(L, static_cast<lua_Integer>(index)); // the next call brings the table
  lua_pushvalue(L, values);
  lua_pushcclosure(L, construct, 2);
  return 1;
}

// Pushes the value of --arg, converted to the type of the default.
void push_arg(lua_State* L, const std::string& name, const std::string& text, int type) {
  if (type == LUA_TNUMBER) {
    if (lua_stringtonumber(L, text.c_str()) != text.size() + 1)
      luaL_error(L, "--arg %s=%s: expected a number, like the default", name.c_str(), text.c_str());
  } else if (type == LUA_TBOOLEAN) {
    if (text != "true" && text != "false")
      luaL_error(L, "--arg %s=%s: expected true or false, like the default", name.c_str(), text.c_str());
    lua_pushboolean(L, text == "true");
  } else {
    lua_pushlstring(L, text.data(), text.size());
  }
}

int arg(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  size_t length = 0;
  const char* text = luaL_checklstring(L, 1, &length);
  std::string name(text, length);
  lua_settop(L, 2);
  int type = lua_type(L, 2);
  if (type != LUA_TNIL && type != LUA_TNUMBER && type != LUA_TBOOLEAN && type != LUA_TSTRING)
    luaL_error(L, "the default of fvlm.arg(\"%s\") is a %s\n  use a number, a string or a boolean", name.c_str(),
               luaL_typename(L, 2));
  if (length > max_arg_bytes || (type == LUA_TSTRING && lua_rawlen(L, 2) > max_arg_bytes))
    luaL_error(L, "the name or default of fvlm.arg exceeds %d bytes", static_cast<int>(max_arg_bytes));
  if (!self.args_read.contains(name)) {
    if (self.args_read.size() == max_args)
      luaL_error(L, "fvlm.arg is called for more than %d names", static_cast<int>(max_args));
    self.args_read.emplace(name, to_value(L, 2, self.author_line(L)));
  }
  if (auto set = self.config.args.find(name); set != self.config.args.end()) push_arg(L, name, set->second, type);
  return 1;
}

int missing(lua_State* L) {
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  const char* name = push_text(L, 2);
  std::vector<std::string> names{"arg"};
  for (const auto& constructor : Interpreter::of(L).config.constructors) names.push_back(constructor.name);
  if (auto near = nearest(name, names))
    return luaL_error(L, "fvlm has no '%s'\n  did you mean '%s'?", name, near->c_str());
  return luaL_error(L, "fvlm has no '%s'", name);
}

} // namespace

bool push_tag(lua_State* L, int index) {
  if (!lua_istable(L, index) || !lua_getmetatable(L, index)) return false;
  bool found = lua_rawgetp(L, -1, &tag_key) != LUA_TNIL;
  lua_remove(L, -2);
  if (!found) lua_pop(L, 1);
  return found;
}

const Constructor* constructor_at(lua_State* L, int index) {
  if (lua_tocfunction(L, index) != construct) return nullptr;
  lua_getupvalue(L, index, 1);
  auto number = static_cast<size_t>(lua_tointeger(L, -1));
  lua_pop(L, 1);
  return &Interpreter::of(L).config.constructors[number];
}

int open_fvlm(lua_State* L) {
  const auto& constructors = Interpreter::of(L).config.constructors;
  lua_newtable(L);
  for (size_t i = 0; i < constructors.size(); i++) {
    lua_pushinteger(L, static_cast<lua_Integer>(i));
    lua_pushnil(L);
    lua_pushcclosure(L, construct, 2);
    lua_setfield(L, -2, constructors[i].name.c_str());
  }
  lua_pushcfunction(L, arg);
  lua_setfield(L, -2, "arg");
  make_read_only(L);
  lua_getmetatable(L, -1);
  lua_getfield(L, -1, "__index");
  lua_pushcclosure(L, missing, 1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  return 1;
}

} // namespace fvlm::recipe
