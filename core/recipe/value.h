// Value: the result of a recipe before the schema reads it. A plain tree, independent of Lua, that records where each
// part was written. A Lua function is represented by its number in the Sandbox.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fvlm::recipe {

struct Origin {
  std::string file;    // as the user named it; empty: unknown
  int line = 0;        // 1-based; 0: unknown
  std::string library; // "fvlm.three_stages:22": the line of a bundled file, if that wrote the value; file and line are
                       // then its caller
};

// "recipe.lua:12", for Error::at(); the file alone where the line is unknown.
std::string where(const Origin& origin);
// The same with the line in a bundled file: "fvlm.three_stages:22 via recipe.lua:12".
std::string written_at(const Origin& origin);

struct Table;

struct FunctionId {
  int index; // in the Sandbox that created it
};

struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, FunctionId, std::shared_ptr<const Table>> data;
  Origin origin;
};

// A Lua table. One made by a constructor (`fvlm.adamw { ... }`) carries the constructor's name.
struct Table {
  std::string constructor;                           // "adamw", "stage", ...; empty for a plain table
  std::vector<Value> arguments;                      // values before the table: "align" in fvlm.stage "align" { }
  std::vector<std::pair<std::string, Value>> fields; // string keys, sorted by line, then by name
  std::vector<Value> items;                          // 1..n
  // Keys that are written in the source but are nil (`lr = lrs.visoin`), often because of a misspelled variable. Only
  // found where the source could be matched with the table. `x = nil` and `x = ... or nil` are not listed.
  std::vector<std::pair<std::string, Origin>> nils;
  Origin origin; // of the opening brace, or the call
  // Of an argument of Sandbox::call(): further fields, each computed when the function first reads it, if it does. They
  // count for none of its limits.
  std::vector<std::pair<std::string, std::function<double()>>> lazy = {};
};

// "nil", "a boolean", "a number", "a string", "a function", "a table", "fvlm.adamw { }": for "expected ..., got ...".
std::string kind_name(const Value& value);

} // namespace fvlm::recipe
