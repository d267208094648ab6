-- expect: require cannot read
return require "../secret" -- here
