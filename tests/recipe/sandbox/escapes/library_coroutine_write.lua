-- expect: cannot set .wrap.*read-only
coroutine.wrap = print -- here
