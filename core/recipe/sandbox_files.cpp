// Reads the files of a recipe: the recipe itself, modules below its folder, and the bundled library.
#include "base/file.h"
#include "base/text.h"
#include "recipe/sandbox_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fvlm::recipe {
namespace {

constexpr size_t max_chunk_name = LUA_IDSIZE - 2; // Lua truncates longer ones

std::string chunk_name(const Interpreter& self, const std::string& name) {
  for (const auto& source : self.sources)
    if (source->name == name) return source->chunk; // it failed before and is read again
  std::string chunk = name;
  if (chunk.size() > max_chunk_name) chunk.replace(0, chunk.size() - (max_chunk_name - 10), "...");
  auto taken = [&](const std::string& candidate) {
    return std::ranges::any_of(self.sources, [&](auto& s) { return s->chunk == candidate; });
  };
  if (!taken(chunk)) return chunk;
  int number = 2;
  while (taken(fmt::format("{}~{}", chunk, number))) number++;
  return fmt::format("{}~{}", chunk, number);
}

struct RemainingText {
  Interpreter& self;
  std::string_view rest;
};

// A lua_Reader that returns the text in pieces, so that a long text is charged while Lua reads it.
const char* read_piece(lua_State* L, void* data, size_t* size) {
  auto& from = *static_cast<RemainingText*>(data);
  constexpr size_t piece = 4096;
  *size = std::min(piece, from.rest.size());
  const char* text = from.rest.data();
  from.rest.remove_prefix(*size);
  from.self.charge(L, *size);
  return text;
}

// "sub.name" -> "sub/name.lua". Other names are rejected, because they could refer to a file outside of the folder.
std::optional<std::filesystem::path> path_of(std::string_view module) {
  constexpr size_t longest = 200;
  if (module.empty() || module.size() > longest || module.front() == '.' || module.back() == '.') return std::nullopt;
  std::string path;
  for (char c : module) {
    if (c == '.' && path.back() == '/') return std::nullopt;
    if (c != '.' && c != '_' && c != '-' && !(std::isalnum(static_cast<unsigned char>(c)) && c > 0))
      return std::nullopt;
    path += c == '.' ? '/' : c;
  }
  return path + ".lua";
}

// Keeps a file on the list of running files while it runs.
class Loading {
 public:
  Loading(Interpreter& self, std::string name) : self_(self) { self_.loading.push_back(std::move(name)); }
  ~Loading() { self_.loading.pop_back(); }
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

 private:
  Interpreter& self_;
};

struct Found {
  std::filesystem::path file;
  std::string name;
  bool bundled;
};

// Raises a Lua error unless the module is a file inside the folder, also after following links.
Found find_module(lua_State* L, Interpreter& self, const std::string& module) {
  bool bundled = module.starts_with("fvlm.");
  auto relative = path_of(bundled ? module.substr(5) : module);
  if (!relative)
    luaL_error(L,
               "require cannot read '%s'\n  name a file below the recipe's folder: require \"sub.name\" reads "
               "sub/name.lua",
               module.c_str());
  std::filesystem::path folder = bundled ? self.config.library : self.folder;
  Found found{folder / *relative, (folder / *relative).string(), bundled};
  std::error_code error;
  if (!std::filesystem::is_regular_file(found.file, error))
    luaL_error(L, "require found no module '%s': no file %s%s", module.c_str(), found.name.c_str(),
               nearest(module, std::vector<std::string>{"fvlm"}) ? "\n  did you mean 'fvlm'?" : "");
  std::filesystem::path base = folder.empty() ? std::filesystem::path(".") : folder;
  bool inside = false;
  try {
    inside = is_below(found.file, base);
  } catch (const std::filesystem::filesystem_error&) { // removed in the meantime
  }
  if (!inside)
    luaL_error(L, "require is limited to the recipe's folder: %s is a link that leads out of it", found.name.c_str());
  return found;
}

} // namespace

void Interpreter::load(lua_State* L, const std::filesystem::path& path, const std::string& name,
                       const std::string& module) {
  std::string text;
  std::string refused;
  try {
    text = read_file(path, limits.source_bytes);
  } catch (const Error& error) {
    refused = error.what();
  }
  if (!refused.empty()) luaL_error(L, "cannot read %s: %s", name.c_str(), refused.c_str());
  source_bytes += text.size();
  if (source_bytes > limits.source_bytes)
    stop(L, Error(ErrorKind::recipe, "more than {} bytes of Lua files", limits.source_bytes)
                .advise("a recipe should describe a run: put data into files that its data section names"));
  if (text.starts_with(LUA_SIGNATURE[0]))
    luaL_error(L, "%s is compiled Lua; only source text is accepted", name.c_str());
  files[name] = text;
  charge(L, text.size());
  std::string_view rest = text;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);
  if (rest.starts_with('#')) rest.remove_prefix(std::min(rest.find_first_of("\r\n"), rest.size()));
  sources.push_back(std::make_unique<const SourceFile>(name, chunk_name(*this, name), std::string(rest), module));
  const SourceFile& source = *sources.back();
  memory_used += source.lines.memory();
  if (memory_used > memory_limit) stop_for_memory(L, {name, 0});
  if (auto refusal = source.lines.refused())
    stop(L, Error(ErrorKind::recipe, refusal->what).at(where({name, refusal->line})).advise(refusal->advice));
  RemainingText from{*this, source.lines.text()};
  std::string chunk = "@" + source.chunk;
  int status = lua_load(L, read_piece, &from, chunk.c_str(), "t");
  if (status != LUA_OK) {
    rethrow_stop(L, status);
    lua_error(L);
  }
}

int require(lua_State* L) {
  Interpreter& self = Interpreter::of(L);
  size_t length = 0;
  const char* text = luaL_checklstring(L, 1, &length);
  std::string module(text, length);
  lua_settop(L, 1);
  if (module == "fvlm") return lua_getfield(L, LUA_REGISTRYINDEX, "fvlm"), 1;

  luaL_getsubtable(L, LUA_REGISTRYINDEX, "loaded");
  lua_pushvalue(L, 1);
  if (lua_rawget(L, 2) != LUA_TNIL) return 1;
  if (self.finished)
    luaL_error(L,
               "require(\"%s\") is too late: this function runs during training\n  require it at the top of the "
               "file",
               module.c_str());
  Found found = find_module(L, self, module);
  if (auto open = std::ranges::find(self.loading, found.name); open != self.loading.end()) {
    std::string cycle;
    for (; open != self.loading.end(); ++open) cycle += *open + " -> ";
    luaL_error(L, "circular require: %s%s", cycle.c_str(), found.name.c_str());
  }
  Loading loading(self, found.name);
  self.load(L, found.file, found.name, found.bundled ? module : "");
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
  }
  lua_pushvalue(L, 1);
  lua_pushvalue(L, -2);
  lua_rawset(L, 2);
  return 1;
}

} // namespace fvlm::recipe
