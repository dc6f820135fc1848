select name from {schema}.queue union select queue from {schema}.unplaced order by 1
