#include "recipe/schema/table.h"

namespace fvlm::recipe {

const Table* as_table(const Value& value) {
  auto* table = std::get_if<std::shared_ptr<const Table>>(&value.data);
  return table ? table->get() : nullptr;
}

const Value* find_field(const Table& table, std::string_view key) {
  for (const auto& [name, value] : table.fields)
    if (name == key) return &value;
  return nullptr;
}

void set_field(Table& table, const std::string& key, Value value) {
  std::erase_if(table.nils, [&](const auto& nil) { return nil.first == key; });
  for (auto& [name, old] : table.fields)
    if (name == key) {
      old = std::move(value);
      return;
    }
  table.fields.emplace_back(key, std::move(value));
}

std::shared_ptr<Table> copy_table(const Value* current, const Origin& origin) {
  if (current)
    if (const Table* table = as_table(*current)) return std::make_shared<Table>(*table);
  auto table = std::make_shared<Table>();
  table->origin = origin;
  return table;
}

Value table_value(std::shared_ptr<Table> table) {
  Origin origin = table->origin;
  return {std::shared_ptr<const Table>(std::move(table)), origin};
}

Value list_value(std::vector<Value> items, const Origin& origin) {
  auto table = std::make_shared<Table>();
  table->items = std::move(items);
  table->origin = origin;
  return table_value(std::move(table));
}

std::string constructor_of(const Value& value) {
  const Table* table = as_table(value);
  if (!table) return "";
  if (!table->constructor.empty()) return table->constructor;
  const Value* kind = find_field(*table, "kind");
  auto* text = kind ? std::get_if<std::string>(&kind->data) : nullptr;
  return text ? *text : "";
}

} // namespace fvlm::recipe
