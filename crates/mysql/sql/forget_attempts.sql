delete from {schema}.message_attempt where message_id in (:message_ids)
