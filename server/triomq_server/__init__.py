"""A name server and a broker with Apache RocketMQ 4.9's wire, replication and disk formats, on trio."""
