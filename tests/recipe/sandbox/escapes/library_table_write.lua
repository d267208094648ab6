-- expect: cannot set .insert.*read-only
table.insert = print -- here
