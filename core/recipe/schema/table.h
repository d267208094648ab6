// Access to the tables of a Value tree. Changes are made to a copy, because tables may be shared.
#pragma once
#include "recipe/value.h"

#include <memory>
#include <string>
#include <string_view>

namespace fvlm::recipe {

const Table* as_table(const Value& value); // null where it is not a table
const Value* find_field(const Table& table, std::string_view key);
void set_field(Table& table, const std::string& key, Value value);

// A mutable copy of the table `current`, or an empty table where it is null or not a table.
std::shared_ptr<Table> copy_table(const Value* current, const Origin& origin);
Value table_value(std::shared_ptr<Table> table);
Value list_value(std::vector<Value> items, const Origin& origin);

// The constructor that made a table, or in a plan file the value of its key `kind`. Empty where there is neither.
std::string constructor_of(const Value& value);

} // namespace fvlm::recipe
