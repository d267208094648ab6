// Type<T>: how a value of the C++ type T stands in a recipe: how it is read, written as JSON, described to an author,
// and changed by --set. Small types are put together into larger ones (basic.h, containers.h, record.h), so that a
// field is declared once and everything else follows.
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

// Everything, or only what can change the numbers of a run (what a Plan's hash is made of).
enum class Write { everything, results };

// One `--set path=value`.
struct Assignment {
  std::string text;
  Origin origin; // "--set path=value", no line
};

// Where a printed value stands: its path, its JSON, and the field that declares it (null at the root).
using LeafSink = std::function<void(const std::string& path, const Json& value, const FieldInfo* field)>;

class Node {
 public:
  virtual ~Node() = default;

  // "a number above 0": completes "expected ...".
  virtual std::string expected() const = 0;
  // The type for the editor's language server: "number", "fvlm.Mix".
  virtual std::string lua_type() const = 0;

  // The same for those of its values that are no table: what a table's short form takes.
  virtual std::string plain_expected() const { return expected(); }
  virtual std::string plain_lua_type() const { return lua_type(); }

  // Whether a value is meant for this type, as far as its shape says; read() then judges the details.
  virtual bool takes(const Value& value) const = 0;

  // False for what is printed in parts.
  virtual bool leaf() const { return true; }

  // The record this type is, and the types it is made of: what a walk over the schema follows.
  virtual const RecordInfo* record() const { return nullptr; }
  virtual std::vector<const Node*> parts() const { return {}; }

  // A copy of `current` (null: nothing was written) in which the value at `rest` is the assignment's. `reader.path()`
  // is where `current` stands. The result is then read like anything an author wrote. This one is for leaves.
  virtual Value assign(Reader& reader, const Assignment& assignment, const Value* current,
                       std::span<const std::string> rest) const;

  // Calls the sink for each value that is printed on its own. This one: `json` itself.
  virtual void leaves(const Json& json, const std::string& path, const FieldInfo* field, const LeafSink& sink) const {
    sink(path, json, field);
  }

  // Read and write for a record, which knows where its fields lie and not what they are. Null JSON: there is no value.
  virtual bool read_at(Reader& reader, const Value& value, void* out) const = 0;
  virtual Json write_at(const void* in, Write what) const = 0;
};

template <class T>
class Type : public Node {
 public:
  using type = T;
  // Fills `out`. Reports what is wrong to the reader and then returns false; goes on past a mistake where it can.
  virtual bool read(Reader& reader, const Value& value, T& out) const = 0;
  virtual Json write(const T& in, Write what) const = 0;
  // False: the value is left out of the JSON (an optional without a value).
  virtual bool present(const T&) const { return true; }

  bool read_at(Reader& reader, const Value& value, void* out) const final {
    return read(reader, value, *static_cast<T*>(out));
  }
  Json write_at(const void* in, Write what) const final {
    const T& value = *static_cast<const T*>(in);
    return present(value) ? write(value, what) : Json();
  }
};

// Types are made when a schema is first asked for, and kept until the program ends.
template <class T>
using Ref = const Type<T>*;

void keep(std::unique_ptr<const Node> type);
template <class Made, class... Arguments>
const Made* make_type(Arguments&&... arguments) {
  auto* made = new Made(std::forward<Arguments>(arguments)...);
  keep(std::unique_ptr<const Node>(made));
  return made;
}

// What a person may write after `=` on the command line: a JSON value where it is one, else the text itself.
Value literal(const Assignment& assignment);
// A JSON document as the Value tree that a recipe would have made.
Value from_json(const Json& json, const Origin& origin);

// "stages.align.objective[1].beta" -> stages, align, objective, 1, beta
std::vector<std::string> split_path(std::string_view path);

std::string lua_key(const std::string& key); // lr, ["a-b"]
// Lua's way to write a JSON value: { 0.9, 0.999 }, "bf16", { connector = 0.001 }.
std::string as_lua(const Json& json);

// "did you mean 'lr'?", or which keys there are.
std::string advise_key(std::string_view key, const std::vector<std::string>& known);

// A number as short as it can be read back: 1e-5, 0.03, 32.
std::string shortest(double number);

} // namespace fvlm::recipe
