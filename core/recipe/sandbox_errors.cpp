// Translates Lua errors to Error: the author's file and line, the message, and the callers.
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace fvlm::recipe {
namespace {

constexpr int max_levels = 60; // limited, because each lua_getstack walks the stack from the top
constexpr size_t max_callers = 3;

// Removes a prefix like "recipe.lua:12: " from a message and returns it, if it names a file of the recipe.
std::optional<Origin> remove_location(const Interpreter& self, std::string_view& message, bool& bundled) {
  for (const auto& source : self.sources) {
    std::string_view rest = message;
    if (!rest.starts_with(source->chunk + ":")) continue;
    rest.remove_prefix(source->chunk.size() + 1);
    int line = 0;
    size_t digits = 0;
    while (digits < rest.size() && digits < 9 && std::isdigit(static_cast<unsigned char>(rest[digits])))
      line = line * 10 + (rest[digits++] - '0');
    if (digits == 0 || !rest.substr(digits).starts_with(": ")) continue;
    message = rest.substr(digits + 2);
    bundled = source->bundled;
    return Origin{source->name, line};
  }
  return std::nullopt;
}

std::vector<Origin> author_lines(const Interpreter& self, lua_State* L) {
  std::vector<Origin> lines;
  lua_Debug frame;
  for (int level = 0; level < max_levels && lua_getstack(L, level, &frame); level++) {
    lua_getinfo(L, "Sl", &frame);
    const SourceFile* source = self.source_of(frame);
    if (!source || source->bundled || frame.currentline <= 0) continue;
    if (!lines.empty() && lines.back().file == source->name && lines.back().line == frame.currentline) continue;
    lines.push_back({source->name, frame.currentline});
  }
  return lines;
}

// Advice for functions of standard Lua that the sandbox does not have, and for misspelled names.
std::string advice_for(const Interpreter& self, std::string_view message) {
  static constexpr std::array<std::string_view, 7> forbidden = {"io",   "os",     "debug",         "package",
                                                                "load", "dofile", "collectgarbage"};
  for (auto name : forbidden)
    if (message.find(fmt::format("(global '{}')", name)) != std::string_view::npos)
      return fmt::format("the sandbox has no '{}': a recipe cannot access anything outside", name);
  if (message.find("(field 'random')") != std::string_view::npos)
    return "the sandbox has no random numbers: a recipe must always give the same Plan; use `seed` for the run";
  constexpr std::string_view unknown = "a nil value (global '";
  if (size_t at = message.find(unknown); at != std::string_view::npos) {
    std::string_view name = message.substr(at + unknown.size());
    name = name.substr(0, name.find('\''));
    if (name == "fvlm") return "begin the file with: local fvlm = require \"fvlm\"";
    if (std::ranges::find(self.config.constructors, name, &Constructor::name) != self.config.constructors.end())
      return fmt::format("write fvlm.{}, where the file begins with: local fvlm = require \"fvlm\"", name);
    static const std::vector<std::string> known = {"fvlm",   "require", "ipairs", "pairs", "math",
                                                   "string", "table",   "print",  "error", "tostring"};
    auto near = nearest(name, known);
    return near ? fmt::format("did you mean '{}'?", *near)
                : fmt::format("'{}' is not defined here: is it misspelled, or defined further down?", name);
  }
  if (message.find("'}' expected") != std::string_view::npos && message.find(" near ") != std::string_view::npos)
    return "is a comma missing before it?";
  return {};
}

// The text of the error, from the author's __tostring where the error object has one.
std::string message_of(lua_State* L) {
  if (lua_type(L, 1) != LUA_TSTRING) {
    lua_pushcfunction(L, [](lua_State* inner) {
      push_text(inner, 1);
      return 1;
    });
    lua_pushvalue(L, 1);
    if (int status = lua_pcall(L, 1, 1, 0); status != LUA_OK) {
      Interpreter::of(L).rethrow_stop(L, status);
      return "an error whose __tostring fails";
    }
    if (lua_type(L, 1) == LUA_TTABLE && lua_type(L, -1) == LUA_TSTRING &&
        lua_tostring(L, -1) == std::string_view("table"))
      return "the error object is a table";
  }
  size_t length = 0;
  const char* text = lua_tolstring(L, -1, &length);
  constexpr size_t longest = 2000;
  std::string message(text, std::min(length, longest));
  return length > longest ? message + "..." : message;
}

int on_error(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  if (self.stopped) return 1;
  lua_settop(L, 1);
  std::string whole = message_of(L);
  std::string_view message = whole;

  // A message that was raised again has several locations as prefixes; the last one is the original.
  std::optional<Origin> place;
  bool bundled = false;
  while (auto found = remove_location(self, message, bundled)) place = found;
  std::vector<Origin> callers = author_lines(self, L);
  if (!place || bundled) {
    if (!callers.empty())
      place = callers.front();
    else if (!self.loading.empty()) // a tail call leaves no line
      place = Origin{self.loading.back(), 0};
  }

  std::string what(message), advice;
  if (size_t cut = what.find("\n  "); cut != std::string::npos) {
    advice = what.substr(cut + 3);
    what.resize(cut);
  }
  if (advice.empty()) advice = advice_for(self, what);
  auto same = [&](const Origin& line) { return place && line.file == place->file && line.line == place->line; };
  auto rest = std::ranges::find_if(callers, same);
  rest = rest == callers.end() ? callers.begin() : rest + 1;
  for (size_t named = 0; rest != callers.end() && named < max_callers; ++rest, named++)
    what += "\n  called from " + where(*rest);
  self.failure.emplace(ErrorKind::recipe, std::move(what));
  if (place) self.failure->at(where(*place));
  self.failure->advise(std::move(advice));
  return 1;
}

int run_body(lua_State* L) {
  auto& body = *static_cast<const std::function<void(lua_State*)>*>(lua_touserdata(L, 1));
  lua_settop(L, 0);
  std::optional<Error> thrown;
  try {
    body(L);
  } catch (const Error& error) {
    thrown = error;
  } catch (const std::exception& error) {
    thrown = Error(ErrorKind::internal, error.what());
  }
  if (thrown) Interpreter::of(L).stop(L, std::move(*thrown));
  return 0;
}

} // namespace

const SourceFile* Interpreter::source_of(const lua_Debug& frame) const {
  std::string_view chunk(frame.source, frame.srclen);
  if (!chunk.starts_with('@')) return nullptr;
  chunk.remove_prefix(1);
  for (const auto& source : sources)
    if (source->chunk == chunk) return source.get();
  return nullptr;
}

Origin Interpreter::author_line(lua_State* L, int level) {
  auto thread = std::find(threads.rbegin(), threads.rend(), L);
  for (; thread != threads.rend(); ++thread, level = 0) {
    lua_Debug frame;
    for (int last = level + max_levels; level < last && lua_getstack(*thread, level, &frame); level++) {
      lua_getinfo(*thread, "Sl", &frame);
      const SourceFile* source = source_of(frame);
      if (source && !source->bundled && frame.currentline > 0) return {source->name, frame.currentline};
    }
  }
  return {loading.empty() ? std::string() : loading.back(), 0};
}

void Interpreter::protect(const std::function<void(lua_State*)>& body) {
  lua_State* L = main;
  lua_settop(L, 0);
  lua_pushcfunction(L, on_error);
  lua_pushcfunction(L, run_body);
  lua_pushlightuserdata(L, const_cast<void*>(static_cast<const void*>(&body)));
  int status = lua_pcall(L, 1, 0, 1);
  lua_settop(L, 0);
  threads.assign(1, main);
  if (status == LUA_OK) return;
  if (stopped) throw *stopped;
  if (status == LUA_ERRMEM) throw memory_error(out_of_memory_at);
  if (failure) throw *std::exchange(failure, std::nullopt);
  throw Error(ErrorKind::internal, "Lua failed with status {}", status);
}

} // namespace fvlm::recipe
