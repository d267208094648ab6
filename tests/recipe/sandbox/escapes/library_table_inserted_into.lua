-- expect: read-only
table.insert(table, 1, print) -- here
