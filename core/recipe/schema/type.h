// Type<T>: how a recipe represents a value of the C++ type T: how it is read, written as JSON, described to an author,
// and changed by --set. Types compose (basic.h, containers.h, record.h), so that each field is declared once and
// everything else follows from the declaration.
#pragma once
#include "recipe/schema/reader.h"
#include "recipe/value.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fvlm::recipe {

using Json = nlohmann::ordered_json;

struct FieldInfo;
struct RecordInfo;

// Write everything, or only what can change the results of a run: the input of the Plan's hash.
enum class Write { everything, results };

// One `--set path=value`.
struct Assignment {
  std::string text;
  Origin origin; // "--set path=value", no line
};

// Receives the path and JSON of a value that is printed on its own, and the field that declares it (null at the root).
using LeafSink = std::function<void(const std::string& path, const Json& value, const FieldInfo* field)>;

class Node {
 public:
  virtual ~Node() = default;

  // Completes "expected ...": "a number above 0".
  virtual std::string expected() const = 0;
  // The type for the editor's language server: "number", "fvlm.Mix".
  virtual std::string lua_type() const = 0;

  // The same without tables: what the short form of a table accepts.
  virtual std::string plain_expected() const { return expected(); }
  virtual std::string plain_lua_type() const { return lua_type(); }

  // Whether the shape of a value fits this type. read() then checks the details.
  virtual bool accepts(const Value& value) const = 0;

  // False where the value is printed as several values.
  virtual bool is_leaf() const { return true; }

  // The record that this type is, and the types it consists of, for walks over the schema.
  virtual const RecordInfo* record() const { return nullptr; }
  virtual std::vector<const Node*> parts() const { return {}; }

  // Returns a copy of `current` (null: nothing was written) with the assignment applied at the path `rest`, relative to
  // `reader.path()`. The result is then read like what an author wrote. This implementation is for leaves.
  virtual Value assign(Reader& reader, const Assignment& assignment, const Value* current,
                       std::span<const std::string> rest) const;

  // Calls the sink for each value that is printed on its own. By default that is `json` itself.
  virtual void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const {
    sink(path, json, field);
  }

  // Type-erased read and write, for records. write_at() returns null JSON where there is no value.
  virtual bool read_at(Reader& reader, const Value& value, void* out) const = 0;
  virtual Json write_at(const void* in, Write what) const = 0;
};

template <class T>
class Type : public Node {
 public:
  using type = T;
  // Fills `out`. Reports mistakes to the reader and returns false where there are any, after reading as much as
  // possible.
  virtual bool read(Reader& reader, const Value& value, T& out) const = 0;
  virtual Json write(const T& in, Write what) const = 0;
  // False omits the value from the JSON (an optional without a value).
  virtual bool present(const T&) const { return true; }

  bool read_at(Reader& reader, const Value& value, void* out) const final {
    return read(reader, value, *static_cast<T*>(out));
  }
  Json write_at(const void* in, Write what) const final {
    const T& value = *static_cast<const T*>(in);
    return present(value) ? write(value, what) : Json();
  }
};

// Types are created on first use of a schema and live until the program ends.
template <class T>
using Ref = const Type<T>*;

void keep(std::unique_ptr<const Node> type);
template <class Made, class... Arguments>
const Made* make_type(Arguments&&... arguments) {
  auto* made = new Made(std::forward<Arguments>(arguments)...);
  keep(std::unique_ptr<const Node>(made));
  return made;
}

// Parses the text after `=` on the command line: as JSON where it is valid JSON, else as a string.
Value literal(const Assignment& assignment);
// Converts JSON to the Value tree that an equivalent recipe would return.
Value from_json(const Json& json, const Origin& origin);

// "stages.align.objective[1].beta" -> stages, align, objective, 1, beta
std::vector<std::string> split_path(std::string_view path);

std::string lua_key(const std::string& key); // lr, ["a-b"]
// A JSON value in Lua syntax: { 0.9, 0.999 }, "bf16", { connector = 0.001 }.
std::string as_lua(const Json& json);

// "did you mean 'lr'?", or the list of known keys.
std::string advise_key(std::string_view key, const std::vector<std::string>& known);

// The shortest text that reads back as the same number: 1e-5, 0.03, 32.
std::string shortest(double number);

} // namespace fvlm::recipe
