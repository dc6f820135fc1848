select {schema}.adopt($1, $2)
