// Converts between Lua values and Value. Functions are represented by their number.
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::recipe {
namespace {

constexpr uint64_t bytes_of_a_value = 280; // estimated size of a Value in the tree
constexpr uint64_t cost_of_a_value = 30;   // in instructions
constexpr size_t max_key_bytes = 200;      // of a table; it becomes part of the path of everything below

// Where a value is written in the source and, for a table, the source of its fields.
struct Written {
  Origin origin;
  const TableSource* source = nullptr;
  std::string variable; // if the value is written as a single name
};

class Converter {
 public:
  explicit Converter(lua_State* L) : L_(L), self_(Interpreter::of(L)) {}

  Value convert(int index, const Written& written) {
    spend(bytes_of_a_value + written.origin.file.size(), written.origin);
    if (++values_ > self_.limits.values)
      fail(written.origin, fmt::format("more than {} values", grouped(static_cast<int64_t>(self_.limits.values))),
           "is there a loop that adds to a table without end? a pattern such as \"data/{0000..0999}.tar\" names "
           "many files");
    self_.charge(L_, cost_of_a_value);
    Value value;
    value.origin = written.origin;
    switch (lua_type(L_, index)) {
    case LUA_TNIL:
      break;
    case LUA_TBOOLEAN:
      value.data = lua_toboolean(L_, index) != 0;
      break;
    case LUA_TNUMBER:
      if (lua_isinteger(L_, index))
        value.data = int64_t{lua_tointeger(L_, index)};
      else
        value.data = lua_tonumber(L_, index);
      break;
    case LUA_TSTRING: {
      size_t length = 0;
      const char* text = lua_tolstring(L_, index, &length);
      spend(length, written.origin);
      value.data = std::string(text, length);
      break;
    }
    case LUA_TFUNCTION:
      value.data = convert_function(index, written.origin);
      break;
    case LUA_TTABLE:
      value.data = convert_table(lua_absindex(L_, index), written);
      break;
    default:
      fail(written.origin, fmt::format("a {} cannot be part of a recipe", luaL_typename(L_, index)), "");
    }
    return value;
  }

  // Sets the file that contains the values converted next.
  void set_file(const SourceFile* file) { file_ = file; }

 private:
  [[noreturn]] static void fail(const Origin& place, std::string what, std::string advice) {
    throw Error(ErrorKind::recipe, std::move(what)).at(where(place)).advise(std::move(advice));
  }

  void spend(uint64_t bytes, const Origin& place) {
    self_.result_bytes += bytes;
    const auto fits = [&] { return self_.memory_used + self_.result_bytes <= self_.memory_limit; };
    if (fits()) return;
    lua_gc(L_, LUA_GCCOLLECT);
    if (!fits())
      fail(place, fmt::format("the result needs more than {}", human_bytes(self_.limits.memory_bytes)),
           "is the same large table contained many times?");
  }

  FunctionId convert_function(int index, const Origin& place) {
    if (const Constructor* constructor = constructor_at(L_, index))
      fail(place, fmt::format("fvlm.{} still waits for its table", constructor->name), "call it with { ... }");
    if (lua_iscfunction(L_, index))
      fail(place, "a built-in function of Lua cannot be part of a recipe", "wrap it in function(...) return ... end");
    index = lua_absindex(L_, index);
    push_functions(L_);
    lua_pushvalue(L_, index);
    lua_rawseti(L_, -2, self_.functions + 1);
    lua_pop(L_, 1);
    return FunctionId{self_.functions++};
  }

  // Returns the string keys of a table, sorted, and counts its integer keys.
  std::vector<std::string> read_keys(int index, const Origin& place, lua_Integer& items) {
    std::vector<std::string> keys;
    for (lua_pushnil(L_); lua_next(L_, index); lua_pop(L_, 1)) {
      if (lua_type(L_, -2) == LUA_TSTRING) {
        size_t length = 0;
        const char* text = lua_tolstring(L_, -2, &length);
        if (length > max_key_bytes)
          fail(place, fmt::format("a key of this table has {} bytes", length),
               fmt::format("the limit is {}", max_key_bytes));
        spend(length + sizeof(std::string), place);
        keys.emplace_back(text, length);
      } else if (lua_isinteger(L_, -2)) {
        items++;
      } else {
        fail(place, fmt::format("a key of this table is a {}", luaL_typename(L_, -2)),
             "keys must be strings or integers from 1");
      }
    }
    std::ranges::sort(keys);
    return keys;
  }

  // Reads constructor, location and arguments from the tag on top of the stack and pops it. Returns the source of the
  // table.
  const TableSource* read_tag(Table& table, const std::vector<std::string>& keys) {
    int tag = lua_gettop(L_);
    auto number = [&](int at) {
      lua_rawgeti(L_, tag, at);
      lua_Integer found = lua_tointeger(L_, -1);
      lua_pop(L_, 1);
      return found;
    };
    auto source = [&](int at) {
      lua_Integer found = number(at);
      return found == 0 ? nullptr : self_.sources[static_cast<size_t>(found - 1)].get();
    };
    lua_rawgeti(L_, tag, 1);
    table.constructor = lua_tostring(L_, -1);
    const SourceFile* author = source(2);
    table.origin = {author ? author->name : std::string(), static_cast<int>(number(3)), {}};
    set_file(source(5));
    auto line = static_cast<int>(number(6));
    if (file_) place(table.origin, line);
    lua_rawgeti(L_, tag, 4);
    int values = lua_gettop(L_);
    for (lua_Integer i = 1; lua_rawgeti(L_, values, i) != LUA_TNIL; i++, lua_pop(L_, 1))
      table.arguments.push_back(convert(-1, {table.origin}));
    lua_settop(L_, tag - 1);
    return file_ ? look_up([&] { return file_->lines.call(table.constructor, line, keys); }) : nullptr;
  }

  // Runs a search in the source and charges the tokens it reads.
  template <class Search>
  const TableSource* look_up(Search&& search) {
    const SourceMap& lines = file_->lines;
    const uint64_t before = lines.tokens_read();
    const TableSource* found = search();
    self_.charge(L_, lines.tokens_read() - before);
    return found;
  }

  // Sets the location to a line of `file_`. If that is a bundled file, the author's line that called it remains.
  void place(Origin& origin, int line) const {
    if (file_ && file_->bundled)
      origin.library = fmt::format("{}:{}", file_->module, line);
    else
      origin.line = line;
  }

  std::shared_ptr<const Table> convert_table(int index, const Written& written) {
    if (!lua_checkstack(L_, 20)) fail(written.origin, "tables nested too deeply", "");
    const void* identity = lua_topointer(L_, index);
    if (std::ranges::find(path_, identity) != path_.end())
      fail(written.origin, "a table contains itself", "a recipe is a tree: create a new inner table");
    if (path_.size() >= static_cast<size_t>(self_.limits.nesting))
      fail(written.origin, fmt::format("more than {} nested tables", self_.limits.nesting),
           "is there a loop that wraps a table in a table?");
    path_.push_back(identity);
    compute_lazy_fields(L_, index);
    const SourceFile* outer_file = file_;
    auto table = std::make_shared<Table>();
    lua_Integer items = 0;
    std::vector<std::string> keys = read_keys(index, written.origin, items);
    const TableSource* source = written.source;
    if (push_tag(L_, index)) {
      source = read_tag(*table, keys);
    } else {
      if (lua_getmetatable(L_, index))
        fail(written.origin, "a table with a metatable cannot be part of a recipe", "copy its fields to a plain table");
      table->origin = written.origin;
      if (!source && file_ && !written.variable.empty())
        source = look_up([&] { return file_->lines.assigned(written.variable, keys); });
    }
    if (source) place(table->origin, source->line);
    convert_fields(index, *table, keys, source);
    convert_items(index, *table, items, source);
    if (!file_ || !file_->bundled) note_nils(*table, keys, source); // in the bundled library, nil is often intended
    set_file(outer_file);
    path_.pop_back();
    return table;
  }

  Written written_as(const Table& table, const FieldSource* field) const {
    Written written{table.origin};
    if (!field) return written;
    place(written.origin, field->line);
    written.source = field->table.get();
    written.variable = field->variable;
    return written;
  }

  void convert_fields(int index, Table& table, const std::vector<std::string>& keys, const TableSource* source) {
    for (const auto& key : keys) {
      const FieldSource* field = nullptr;
      if (source)
        if (auto found = source->fields.find(key); found != source->fields.end()) field = &found->second;
      lua_pushlstring(L_, key.data(), key.size());
      lua_rawget(L_, index);
      table.fields.emplace_back(key, convert(-1, written_as(table, field)));
      lua_pop(L_, 1);
    }
    std::ranges::sort(table.fields, [](const auto& a, const auto& b) {
      return std::tie(a.second.origin.line, a.first) < std::tie(b.second.origin.line, b.first);
    });
  }

  void convert_items(int index, Table& table, lua_Integer count, const TableSource* source) {
    for (lua_Integer i = 1; i <= count; i++) {
      const FieldSource* item = nullptr;
      if (source && static_cast<size_t>(i) <= source->items.size()) item = &source->items[static_cast<size_t>(i - 1)];
      Written written = written_as(table, item);
      if (lua_rawgeti(L_, index, i) == LUA_TNIL)
        fail(written.origin, fmt::format("item {} is nil, and others follow it", i),
             "is a variable not defined here? a list must not have holes");
      table.items.push_back(convert(-1, written));
      lua_pop(L_, 1);
    }
  }

  static void note_nils(Table& table, const std::vector<std::string>& keys, const TableSource* source) {
    if (!source) return;
    auto note = [&](std::string key, const FieldSource& field) {
      if (field.reference) table.nils.emplace_back(std::move(key), Origin{table.origin.file, field.line});
    };
    for (const auto& [key, field] : source->fields)
      if (!std::ranges::binary_search(keys, key)) note(key, field);
    for (size_t i = table.items.size(); i < source->items.size(); i++)
      note(fmt::format("[{}]", i + 1), source->items[i]);
  }

  lua_State* L_;
  Interpreter& self_;
  uint64_t values_ = 0;
  std::vector<const void*> path_;    // the tables that contain the current one
  const SourceFile* file_ = nullptr; // the file that `source` refers to
};

} // namespace

Value to_value(lua_State* L, int index, const Origin& written, const SourceFile* returned_by) {
  Converter converter(L);
  Written root{written};
  if (returned_by) {
    converter.set_file(returned_by);
    root.variable = "return";
    if (const TableSource* source = returned_by->lines.assigned("return", {})) root.origin.line = source->line;
  }
  return converter.convert(lua_absindex(L, index), root);
}

void push_functions(lua_State* L) {
  luaL_getsubtable(L, LUA_REGISTRYINDEX, "functions");
}

void push_value(lua_State* L, const Value& value) {
  luaL_checkstack(L, 10, "arguments nested too deeply");
  struct Push {
    lua_State* L;
    void operator()(std::monostate) const { lua_pushnil(L); }
    void operator()(bool truth) const { lua_pushboolean(L, truth); }
    void operator()(int64_t number) const { lua_pushinteger(L, number); }
    void operator()(double number) const { lua_pushnumber(L, number); }
    void operator()(const std::string& text) const { lua_pushlstring(L, text.data(), text.size()); }
    void operator()(FunctionId function) const {
      push_functions(L);
      lua_rawgeti(L, -1, function.index + 1);
      lua_remove(L, -2);
    }
    void operator()(const std::shared_ptr<const Table>& table) const {
      lua_newtable(L);
      for (const auto& [key, field] : table->fields) {
        lua_pushlstring(L, key.data(), key.size());
        push_value(L, field);
        lua_rawset(L, -3);
      }
      for (size_t i = 0; i < table->items.size(); i++) {
        push_value(L, table->items[i]);
        lua_rawseti(L, -2, static_cast<lua_Integer>(i) + 1);
      }
      if (!table->lazy.empty()) add_lazy_fields(L, table);
    }
  };
  std::visit(Push{L}, value.data);
}

} // namespace fvlm::recipe
