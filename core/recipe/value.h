// Value: what a recipe evaluates to, before the schema has looked at it. A plain tree that remembers where in the
// author's files each part was written. Nothing of Lua is left in it; a Lua function is a number in the Sandbox.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::recipe {

struct Origin {
  std::string file;    // as the user would name it; empty: unknown
  int line = 0;        // 1-based; 0: unknown
  std::string library; // "fvlm.three_stages:22": the line of a bundled file that wrote it, called from the line above
};

// "recipe.lua:12", for Error::at(); the file alone where the line is unknown.
std::string where(const Origin& origin);
// The same for people who ask which line to look at: "fvlm.three_stages:22 via recipe.lua:12".
std::string written_at(const Origin& origin);

struct Table;

struct FunctionId {
  int index; // in the Sandbox that made it
};

struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, FunctionId, std::shared_ptr<const Table>> data;
  Origin origin;
};

// A Lua table. One made by a constructor (`fvlm.adamw { ... }`) carries the constructor's name.
struct Table {
  std::string constructor;                           // "adamw", "stage", ...; empty for a plain table
  std::vector<Value> arguments;                      // what preceded the table: fvlm.stage "align" { } -> "align"
  std::vector<std::pair<std::string, Value>> fields; // string keys, sorted by the line they stand on, then by name
  std::vector<Value> items;                          // 1..n
  // Keys that are written in the source but came out nil (`lr = lrs.visoin`): often a misspelt variable.
  // Found where the source could be matched with the table; `x = nil` and `x = ... or nil` are not listed.
  std::vector<std::pair<std::string, Origin>> nils;
  Origin origin; // of the opening brace, or the call
};

// "nil", "a boolean", "a number", "a string", "a function", "a table", "fvlm.adamw { }": for "expected ..., got ...".
std::string kind_name(const Value& value);

} // namespace fvlm::recipe
