select name from queue order by name
