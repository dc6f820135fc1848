select pgmq.create($1), pgmq.create($2)
