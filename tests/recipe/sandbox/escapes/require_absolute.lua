-- expect: require cannot read
return require "/etc/passwd" -- here
