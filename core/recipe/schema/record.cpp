#include "recipe/schema/record.h"

#include "base/text.h"
#include "recipe/schema/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

namespace fvlm::recipe {

const FieldInfo* RecordInfo::find(std::string_view name) const {
  auto found = std::ranges::find(fields, name, &FieldInfo::name);
  return found == fields.end() ? nullptr : &*found;
}

const RemovedKey* RecordInfo::find_removed(std::string_view name) const {
  auto found = std::ranges::find(removed, name, &RemovedKey::name);
  return found == removed.end() ? nullptr : &*found;
}

std::vector<std::string> RecordInfo::keys() const {
  std::vector<std::string> names;
  for (const auto& field : fields)
    if (!field.derived) names.push_back(field.name);
  return names;
}

bool same_name(std::string_view a, std::string_view b) {
  auto bare = [](std::string_view name) {
    std::string out;
    for (unsigned char c : name)
      if (c != '_' && c != '-') out += static_cast<char>(std::tolower(c));
    return out;
  };
  return bare(a) == bare(b);
}

const FieldInfo* field_by_alias(const RecordInfo& info, std::string_view key) {
  for (const auto& field : info.fields)
    for (const auto& name : field.aliases)
      if (same_name(name, key)) return &field;
  return nullptr;
}

const ForeignKey* foreign_key(const RecordInfo& info, std::string_view key) {
  const auto found =
      std::ranges::find_if(info.foreign, [&](const ForeignKey& foreign) { return same_name(foreign.name, key); });
  return found == info.foreign.end() ? nullptr : &*found;
}

namespace {

constexpr const char* leave_it_out = "remove it: it does not affect results";

using ReadField = std::function<bool(size_t field, const Value&)>;

// The field that a value which is not a table is read as. Null: the record has no short form.
const FieldInfo* short_form(const RecordInfo& info) {
  return info.broadcast ? &info.fields.front() : info.find(info.shorthand);
}

// The field that the author of an unknown key probably meant.
const FieldInfo* field_for_unknown_key(const RecordInfo& info, const std::string& key) {
  if (const FieldInfo* field = field_by_alias(info, key)) return field;
  auto near = nearest(key, info.keys());
  return near ? info.find(*near) : nullptr;
}

// `path`: of the record.
std::string advise(const RecordInfo& info, const std::string& key, std::string_view path) {
  if (const ForeignKey* foreign = foreign_key(info, key)) return foreign->advice;
  if (auto* field = field_by_alias(info, key)) return fmt::format("it is called '{}' here", field->name);
  for (const auto& outer : info.fields) { // perhaps it is a field of a nested record
    std::vector<const Node*> nodes = outer.node->parts();
    nodes.push_back(outer.node);
    for (const Node* node : nodes) {
      if (!node->record() || node->record() == &info) continue;
      const FieldInfo* inner = node->record()->find(key);
      if (!inner) inner = field_by_alias(*node->record(), key);
      if (!inner) continue;
      if (outer.place != Place::items) return fmt::format("it belongs in '{}', as '{}'", outer.name, inner->name);
      const std::string& constructor = node->record()->constructor;
      const std::string place = join_path(path, key_part(outer.name));
      return constructor.empty()
                 ? fmt::format("each of the {} has its own: write it into the table of that entry, {{ ..., {} = ... }}",
                               outer.name, inner->name)
                 : fmt::format("each of the {} has its own: fvlm.{} \"name\" {{ {} = ... }}, and on the command line "
                               "--set {}.NAME.{}=..., or {}.*.{} for all",
                               outer.name, constructor, inner->name, place, inner->name, place, inner->name);
    }
  }
  return advise_key(key, info.keys());
}

std::string advise_derived(const RecordInfo& info, const FieldInfo& derived) {
  const FieldInfo* field = field_by_alias(info, derived.name);
  return field ? fmt::format("set '{}' instead; this is {}", field->name, derived.doc) : derived.doc;
}

// A list that is given to every field: kernels = { "cudnn", "reference" }
bool is_short_list(const Table& table, const RecordInfo& info, const Value& value) {
  return info.broadcast && table.constructor.empty() && table.fields.empty() && !table.items.empty() &&
         info.fields.front().node->accepts(value);
}

// Reads a table once: passes each value to its field and reports unknown, repeated and missing ones.
class TableReader {
 public:
  TableReader(Reader& reader, const Table& table, const RecordInfo& info, const ReadField& read_field)
      : reader_(reader), table_(table), info_(info), read_field_(read_field) {}

  bool read() {
    arguments();
    for (const auto& [key, value] : table_.fields) keyed(key, value);
    entries();
    nils();
    missing();
    return good_;
  }

 private:
  void give(const FieldInfo& field, const Value& value) {
    if (!seen_.insert(field.name).second) {
      reader_.report(value.origin, fmt::format("'{}' is given twice", field.name));
      good_ = false;
      return;
    }
    size_t index = &field - info_.fields.data();
    good_ &= reader_.within(key_part(field.name), [&] {
      const bool good = read_field_(index, value);
      if (!good && !field.hint.empty()) reader_.mistakes.advise(reader_.path(), field.hint);
      return good;
    });
  }

  void arguments() {
    size_t next = 0;
    for (const auto& field : info_.fields)
      if (field.place == Place::argument && next < table_.arguments.size()) give(field, table_.arguments[next++]);
  }

  void keyed(const std::string& key, const Value& value) {
    if (auto* kind = std::get_if<std::string>(&value.data); key == "kind" && kind && *kind == info_.constructor) return;
    const FieldInfo* field = info_.find(key);
    if (field && field->derived && reader_.reads_plan_file) return;
    if (std::holds_alternative<std::monostate>(value.data)) return;
    if (field && !field->derived) return give(*field, value);
    const RemovedKey* removed = info_.find_removed(key);
    if (removed && reader_.reads_plan_file) {
      reader_.ignored_removed_key = true;
      return;
    }
    const std::string path = reader_.path();
    good_ = reader_.within(key_part(key), [&] {
      if (reader_.mistakes.full()) return reader_.report(value.origin, "", ""); // further mistakes are only counted
      if (removed) return reader_.report(value.origin, removed->reason, leave_it_out);
      if (field) return reader_.report(value.origin, "is computed and cannot be set", advise_derived(info_, *field));
      if (const FieldInfo* meant = field_for_unknown_key(info_, key)) misnamed_.insert(meant->name);
      return reader_.report(value.origin, fmt::format("unknown key '{}'", key), advise(info_, key, path));
    });
  }

  void entries() {
    if (table_.items.empty()) return;
    for (const auto& field : info_.fields)
      if (field.place == Place::items) return give(field, list_value(table_.items, table_.origin));
    const Value& first = table_.items.front();
    good_ = reader_.report(first.origin.line ? first.origin : table_.origin,
                           fmt::format("{} needs a key here", describe_value(first)),
                           "known here: " + join(info_.keys(), ", "));
  }

  void nils() {
    for (const auto& [key, origin] : table_.nils) {
      const FieldInfo* field = info_.find(key);
      if (!field || !seen_.insert(key).second) continue;
      good_ = reader_.within(key_part(key), [&, &origin = origin] {
        return reader_.report(origin, fmt::format("expected {}, got nil", field->node->expected()),
                              "is the variable misspelled? if nil is intended, write 'or nil' after it");
      });
    }
  }

  void missing() {
    for (const auto& field : info_.fields)
      if (!seen_.contains(field.name) && (field.required || misnamed_.contains(field.name)))
        reader_.mark_unknown(key_part(field.name));
    for (const auto& field : info_.fields) {
      if (!field.required || seen_.contains(field.name) || misnamed_.contains(field.name)) continue;
      if (seen_.contains(field.required_unless) || misnamed_.contains(field.required_unless)) continue;
      good_ = reader_.report(table_.origin, fmt::format("'{}' is missing: {}", field.name, field.node->expected()),
                             field.doc);
    }
  }

  Reader& reader_;
  const Table& table_;
  const RecordInfo& info_;
  const ReadField& read_field_;
  std::set<std::string> seen_, misnamed_; // misnamed: written under a wrong name, which is reported
  bool good_ = true;
};

// Where a value is one of a record's entries, which have to stand in its table. Empty: it is not.
std::string advise_entry(const RecordInfo& info, const Value& value) {
  const auto items = std::ranges::find_if(info.fields, [](const auto& field) { return field.place == Place::items; });
  if (items == info.fields.end()) return "";
  const auto* text = std::get_if<std::string>(&value.data);
  const std::string head = info.constructor.empty() ? "" : fmt::format("fvlm.{} ", info.constructor);
  const std::string constructor = constructor_of(value);
  if (text && !head.empty()) return fmt::format("write {}{{ \"{}\" }}", head, text->substr(0, 60));
  for (const Node* node : items->node->parts())
    if (!constructor.empty() && node->record() && node->record()->constructor == constructor)
      return fmt::format("write {}{{ fvlm.{} ... }}", head, constructor);
  return "";
}

} // namespace

RecordFields::RecordFields(const char* title, const char* constructor, const char* doc) {
  info_.title = title;
  info_.constructor = constructor;
  info_.doc = doc;
}

RecordFields::RecordFields(RecordFields&&) noexcept = default;
RecordFields::~RecordFields() = default;

void* RecordFields::find(size_t field, void* record) const {
  const Access& access = accesses_[field];
  return access.find ? access.find(record, info_.fields[field].name) : static_cast<char*>(record) + access.offset;
}

void RecordFields::add(std::string_view name, Access access, const Node& node, const void* defaults,
                       std::string_view doc) {
  FieldInfo field;
  field.name = name;
  field.doc = doc;
  field.node = &node;
  info_.fields.push_back(std::move(field));
  accesses_.push_back(access);
  const void* at = find(info_.fields.size() - 1, const_cast<void*>(defaults));
  last().default_value = node.write_at(at, Write::everything);
}

void RecordFields::aliases(std::initializer_list<const char*> names) {
  last().aliases.assign(names.begin(), names.end());
}

std::vector<const Node*> RecordFields::parts() const {
  std::vector<const Node*> all;
  for (const auto& field : info_.fields) all.push_back(field.node);
  return all;
}

Json RecordFields::write(const void* in, Write what) const {
  Json json = Json::object();
  for (size_t i = 0; i < info_.fields.size(); ++i) {
    const FieldInfo& field = info_.fields[i];
    if (what == Write::results && (field.excluded_from_hash || field.derived)) continue;
    Json value = field.node->write_at(find(i, const_cast<void*>(in)), what);
    if (!field.required_unless.empty() && value == field.default_value) continue; // the other field replaces it
    if (what == Write::results && field.added_later && value == field.default_value) continue;
    if (!value.is_null()) json[field.name] = std::move(value);
  }
  return json;
}

bool RecordFields::read(Reader& reader, const Value& value, void* out) const {
  const RecordInfo& info = info_;
  auto read_field = [&](size_t i, const Value& part) {
    return info.fields[i].node->read_at(reader, part, find(i, out));
  };
  reader.record_origin(value.origin, false);
  const Table* table = as_table(value);
  const FieldInfo* field = short_form(info);
  if (field && (!table || is_short_list(*table, info, value))) {
    if (!field->node->accepts(value)) return reader.report_unexpected(value, expected());
    bool good = true;
    for (size_t i = 0; i < info.fields.size(); ++i)
      if (info.broadcast || info.fields[i].name == info.shorthand)
        good &= reader.within(key_part(info.fields[i].name), [&] { return read_field(i, value); });
    return good;
  }
  if (!table || (!table->constructor.empty() && table->constructor != info.constructor)) {
    reader.report_unexpected(value, expected());
    if (const std::string advice = advise_entry(info, value); !advice.empty())
      reader.mistakes.advise(reader.path(), advice);
    return false;
  }
  return TableReader(reader, *table, info, read_field).read();
}

Value RecordFields::assign(Reader& reader, const Assignment& assignment, const Value* current,
                           std::span<const std::string> rest) const {
  const RecordInfo& info = info_;
  if (rest.empty()) {
    Value whole = literal(assignment);
    const FieldInfo* field = short_form(info);
    return field && !as_table(whole) ? field->node->assign(reader, assignment, nullptr, {}) : whole;
  }
  const FieldInfo* field = info.find(rest[0]);
  if (!field || field->derived) {
    const RemovedKey* removed = info.find_removed(rest[0]);
    std::string what = field     ? "is computed and cannot be set"
                       : removed ? removed->reason
                                 : fmt::format("unknown key '{}'", rest[0]);
    std::string advice = field     ? advise_derived(info, *field)
                         : removed ? leave_it_out
                                   : advise(info, rest[0], reader.path());
    reader.within(key_part(rest[0]), [&] { return reader.report(assignment.origin, what, advice); });
    return current ? *current : Value{};
  }
  auto table = copy_table(current, assignment.origin);
  if (current && !as_table(*current)) // expands a short form before one of its fields changes
    for (const auto& other : info.fields)
      if (info.broadcast || other.name == info.shorthand) set_field(*table, other.name, *current);

  auto change = [&](const Value* old) {
    Value changed;
    reader.within(key_part(field->name), [&] {
      changed = field->node->assign(reader, assignment, old, rest.subspan(1));
      return true;
    });
    return changed;
  };
  const Value* keyed = find_field(*table, field->name);
  if (field->place == Place::argument && !keyed && !table->arguments.empty()) {
    table->arguments[0] = change(&table->arguments[0]);
  } else if (field->place == Place::items && !keyed && !table->items.empty()) {
    Value items = list_value(table->items, table->origin);
    Value changed = change(&items);
    table->items.clear();
    set_field(*table, field->name, changed);
  } else {
    set_field(*table, field->name, change(keyed));
  }
  return table_value(std::move(table));
}

void RecordFields::leaves(const Json& json, const std::string& path, const LeafSink& sink) const {
  for (const auto& field : info_.fields)
    if (auto found = json.find(field.name); found != json.end())
      field.node->leaves(*found, join_path(path, key_part(field.name)), &field, sink);
}

bool RecordFields::accepts(const Value& value) const {
  const Table* table = as_table(value);
  if (!table) return info_.broadcast || !info_.shorthand.empty();
  std::string constructor = constructor_of(value);
  return constructor.empty() || constructor == info_.constructor;
}

std::string RecordFields::expected() const {
  const RecordInfo& info = info_;
  if (info.call_only) return fmt::format("fvlm.{}()", info.constructor);
  if (!info.constructor.empty()) return fmt::format("fvlm.{} {{ }}", info.constructor);
  std::vector<std::string> some = info.keys();
  bool more = some.size() > 4;
  if (more) some.resize(4);
  std::string table = fmt::format("a table {{ {}{} }}", join(some, ", "), more ? ", ..." : "");
  const FieldInfo* field = short_form(info);
  if (!field) return table;
  std::string plain = field->node->plain_expected();
  return fmt::format("{}{} or {}", plain, plain.find(" or ") == std::string::npos ? "" : ",", table);
}

std::string RecordFields::lua_type() const {
  std::string table = fmt::format("fvlm.{}", info_.title);
  const FieldInfo* field = short_form(info_);
  return field ? fmt::format("{}|{}", field->node->plain_lua_type(), table) : table;
}

} // namespace fvlm::recipe
