update {schema}.message m join {schema}.dead_letter d on d.id = m.id
set m.payload = coalesce(:payload, m.payload), m.content_type = case when :changes_type then :content_type else m.content_type end,
    m.headers = coalesce(:headers, m.headers), d.revision = d.revision + 1
where m.id = :id
