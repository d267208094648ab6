// Looking into and changing the tables of a Value tree. A change makes a copy: tables may be shared between places.
#pragma once
#include "recipe/value.h"

#include <memory>
#include <string>
#include <string_view>

namespace fvlm::recipe {

const Table* as_table(const Value& value); // null: no table
const Value* find_field(const Table& table, std::string_view key);
void set_field(Table& table, const std::string& key, Value value);

// A copy to change: of the table that `current` is, else an empty one.
std::shared_ptr<Table> copy_table(const Value* current, const Origin& origin);
Value table_value(std::shared_ptr<Table> table);
Value list_value(std::vector<Value> items, const Origin& origin);

// The constructor a table was made by, or what its key `kind` says (in a plan file). Empty: neither.
std::string constructor_of(const Value& value);

} // namespace fvlm::recipe
