-- The order of a search within a queue: newest end first. Each index is created only if it is missing, which MySQL has
-- no syntax for.
set @make = if(exists(select 1 from information_schema.statistics where table_schema = {schema_text}
                      and table_name = 'message_archive' and index_name = 'message_archive_queue'), 'do 0',
               concat('alter table `', replace({schema_text}, '`', '``'), '`.message_archive add index message_archive_queue (queue, archived_at, id)'));
prepare make_index from @make;
execute make_index;
set @make = if(exists(select 1 from information_schema.statistics where table_schema = {schema_text}
                      and table_name = 'message_archive' and index_name = 'message_archive_message'), 'do 0',
               concat('alter table `', replace({schema_text}, '`', '``'), '`.message_archive add index message_archive_message (message_id)'));
prepare make_index from @make;
execute make_index;
deallocate prepare make_index;
