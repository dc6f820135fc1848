select {schema}.clock() as now
