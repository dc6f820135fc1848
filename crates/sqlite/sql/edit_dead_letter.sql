update message
set payload = coalesce(?2, payload), content_type = ?3, headers = coalesce(?4, headers)
where id = ?1
